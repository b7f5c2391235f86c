package orchestrator

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestRun checks the user, the environment (empty) and the input of the process that Run starts.
func TestRun(t *testing.T) {
	var got supervise.Command
	failed := errors.New("ended with status 1")
	r := New(func(_ context.Context, c supervise.Command) ([]byte, error) {
		got = c
		return []byte("a problem"), failed
	})
	request := nodespec.HostMatchRequest{Expression: "true"}
	text, err := r.Run(t.Context(), paths.UserAPI, "match-host", request)
	if string(text) != "a problem" || !errors.Is(err, failed) {
		t.Errorf("the output of a failed command: %q, %v", text, err)
	}
	input, err := nodespec.Encode(request)
	if err != nil {
		t.Fatal(err)
	}
	if want := (supervise.Command{Args: []string{paths.Orchestrator, "match-host"}, Env: []string{}, UID: paths.UserAPI, Stdin: input, SeparateStderr: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("the command is %+v, want %+v", got, want)
	}
	if _, err := r.Run(t.Context(), 0, "canary", nil); !errors.Is(err, failed) || got.Stdin != nil {
		t.Errorf("without a request: %q, %v", got.Stdin, err)
	}
	got = supervise.Command{}
	if _, err := r.Run(t.Context(), 0, "canary", func() {}); err == nil || got.Args != nil {
		t.Errorf("a request that cannot be encoded: %v, started %q", err, got.Args)
	}
}

// TestRead checks that Read waits while maxReads commands of readers run, and that Run still starts
// another command.
func TestRead(t *testing.T) {
	running, end := make(chan struct{}), make(chan struct{})
	r := New(func(_ context.Context, c supervise.Command) ([]byte, error) {
		if c.Args[1] == "status" {
			running <- struct{}{}
			<-end
		}
		return nil, nil
	})
	done := make(chan error)
	for range maxReads {
		go func() { _, err := r.Read(t.Context(), 0, "status", nil); done <- err }()
		<-running
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(ctx, 0, "status", nil); err == nil {
		t.Error("Read does not wait although maxReads commands run")
	}
	if _, err := r.Run(t.Context(), 0, "snapshot", nil); err != nil {
		t.Errorf("another command: %v", err)
	}
	close(end)
	for range maxReads {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
