package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
)

// TestKubeletWaitsForPortGuard checks that no kubelet starts before the port guard is active. The
// kubelet of the test has a wrong flag, so it would end at once with an error. A shutdown of the
// machine does not wait for a kubelet that has not started.
func TestKubeletWaitsForPortGuard(t *testing.T) {
	down, stopped, ended := make(chan os.Signal, 1), make(chan struct{}), make(chan error, 1)
	w := &wiring{portGuard: make(chan struct{}), end: podEnd{down, func() { close(stopped) }}}
	run := w.runKubelet(component.Component{Name: kubelet.Name, Args: []string{"--no-such-flag"}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- run(ctx, func(string, bool, string) {}) }()
	select {
	case err := <-ended:
		t.Fatalf("the kubelet started before the port guard was active: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	down <- os.Interrupt
	select {
	case <-stopped:
	case <-time.After(20 * time.Second):
		t.Fatal("the shutdown waits for the pods of a kubelet that has not started")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the component ended with the error %v", err)
	}

	close(w.portGuard)
	if err := run(t.Context(), func(string, bool, string) {}); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the kubelet does not start after the port guard is active: %v", err)
	}
}
