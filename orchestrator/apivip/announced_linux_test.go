package apivip

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestAnnounced checks that the machine serves the virtual addresses of its IP families while its
// API server is ready. It announces the addresses after the redirects exist, and withdraws them
// before it removes the redirects.
func TestAnnounced(t *testing.T) {
	steps := make(chan string, 100)
	p := &plane{answers: map[string]health.ProbeResult{}, asked: map[string]int{}}
	own := netip.MustParseAddr("10.0.0.11")
	a := announced{
		spec: nodespec.Spec{
			Node: nodespec.Node{ControlPlane: true, IPs: []netip.Addr{own}}, ControlPlanes: []netip.Addr{own},
			VirtualAddresses: []netip.Addr{netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("2001:db8::9")},
		},
		write: func(all []redirect) error {
			text := "redirects"
			for _, r := range all {
				text += fmt.Sprintf(" %s to %s", r.from, r.to)
			}
			steps <- text
			return nil
		},
		publish: func(all []netip.Addr) { steps <- fmt.Sprintf("routes %v", all) },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx, p.ask) }()
	expect := func(all ...string) {
		t.Helper()
		for _, want := range all {
			limit := time.NewTimer(20 * time.Second)
			select {
			case got := <-steps:
				if got != want {
					t.Fatalf("the step is %q, want %q", got, want)
				}
			case <-limit.C:
				t.Fatalf("no step, want %q", want)
			}
			limit.Stop()
		}
	}
	expect("redirects")
	p.set("127.0.0.1:6443", health.ProbeResult{Reachable: true})
	expect("redirects 10.9.9.9 to 10.0.0.11", "routes [10.9.9.9]")
	p.set("127.0.0.1:6443", health.ProbeResult{Reachable: true, Problem: "500: shutdown failed"})
	expect("routes []", "redirects")
	p.set("127.0.0.1:6443", health.ProbeResult{Reachable: true})
	expect("redirects 10.9.9.9 to 10.0.0.11", "routes [10.9.9.9]")
	cancel()
	expect("routes []", "redirects")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
