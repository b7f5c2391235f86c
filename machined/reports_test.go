package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/console"
	"github.com/orlop-os/orlop/pkg/cell"
)

// TestWatchConsole checks that the status of the console is derived again only after a change.
func TestWatchConsole(t *testing.T) {
	m, status := newMachine(), cell.New(console.Status{})
	updates := status.Watch()
	updates.Current()
	go watchConsole(t.Context(), m, status)
	await := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		_, _, err := updates.Next(ctx)
		return err
	}
	if err := await(time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := await(100 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a change: %v", err)
	}
	m.reports.progress.Enter("storage", "")
	if err := await(time.Minute); err != nil {
		t.Errorf("after a change: %v", err)
	}
}
