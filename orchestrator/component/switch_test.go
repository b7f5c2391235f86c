package component

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// await fails the test if the next event is not want, or does not arrive within a minute.
func await(t *testing.T, want string, events <-chan string) {
	t.Helper()
	select {
	case got := <-events:
		if got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no %s within a minute", want)
	}
}

// TestWhileMachineObjects checks that WhileMachineObjects calls run while the file enables machine
// objects, ends run when the file disables them, restarts run when another setting of the file
// changes, and ends run with the context.
func TestWhileMachineObjects(t *testing.T) {
	dir := t.TempDir()
	set := func(content string) {
		if err := WriteFile(File{Path: filepath.Join(dir, nodespec.MachineObjectsFile), Mode: 0o600, Content: content}); err != nil {
			t.Fatal(err)
		}
	}
	events := make(chan string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := func(ctx context.Context, s nodespec.MachineObjects) error {
		events <- fmt.Sprintf("start claims=%t", s.Claims)
		<-ctx.Done()
		events <- "end"
		return nil
	}
	done := make(chan error, 1)
	set(`{"enabled":false}`)
	go func() { done <- WhileMachineObjects(ctx, dir, func() { events <- "idle" }, run) }()
	await(t, "idle", events)
	set(`{"enabled":true}`)
	await(t, "start claims=false", events)
	set(`{"enabled":false}`)
	await(t, "end", events)
	await(t, "idle", events)
	set(`{"enabled":true}`)
	await(t, "start claims=false", events)
	set(`{"enabled":true,"claims":true}`)
	await(t, "end", events)
	await(t, "start claims=true", events)
	cancel()
	await(t, "end", events)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestWhileMachineObjectsEnds checks that WhileMachineObjects returns the error of run, and an
// error if the file is missing.
func TestWhileMachineObjectsEnds(t *testing.T) {
	dir := t.TempDir()
	if err := WhileMachineObjects(t.Context(), dir, func() {}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v, want that it does not exist", err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodespec.MachineObjectsFile), []byte(`{"enabled":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := WhileMachineObjects(t.Context(), dir, func() {}, func(context.Context, nodespec.MachineObjects) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
