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

// await fails if a channel has no value within a minute.
func await(t *testing.T, what string, from <-chan string) {
	t.Helper()
	select {
	case got := <-from:
		if got != what {
			t.Fatalf("got %s, want %s", got, what)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no %s within a minute", what)
	}
}

// TestWhileMachineObjects checks that the function runs while the file enables it, starts and ends
// with changes of the file, and ends with the context.
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

// TestWhileMachineObjectsEnds checks that an error of the function is returned, and that a missing
// file is an error.
func TestWhileMachineObjectsEnds(t *testing.T) {
	dir := t.TempDir()
	if err := WhileMachineObjects(t.Context(), dir, func() {}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodespec.MachineObjectsFile), []byte(`{"enabled":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := WhileMachineObjects(t.Context(), dir, func() {}, func(context.Context, nodespec.MachineObjects) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
