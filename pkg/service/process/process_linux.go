// Package process is the start of a process without privileges that machined supervises: apid,
// metricsd and podlogd. It connects the reports, the profiles and the signals, drops the
// privileges, and serves until SIGTERM.
//
// The package does not decide on the remaining privileges.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/service/notify"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

// Process is a process that machined supervises.
type Process struct {
	Name string // in error texts, and for machined (package notify)
	// Prepare runs with all privileges. After a SIGTERM, its error context.Canceled is status 0.
	Prepare func(ctx context.Context) error
	// GiveUpPrivileges drops all privileges. The log is connected.
	GiveUpPrivileges func() error
	// Serve serves until ctx ends. ready reports the readiness with a line for the operator. The
	// log is the standard output.
	Serve func(ctx context.Context, ready func(ok bool, detail string)) error
}

// Main runs the process until SIGTERM. It returns the exit status.
func (p Process) Main() int {
	if err := p.run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	return 0
}

func (p Process) run() error {
	reports, err := notify.FromEnv()
	if err != nil {
		return err
	}
	if err := profile.FromEnv(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := p.Prepare(ctx); errors.Is(err, context.Canceled) {
		return nil
	} else if err != nil {
		return err
	}
	if err := p.GiveUpPrivileges(); err != nil {
		return err
	}
	// Without this, a panic in a call would end all other calls, and a client could repeat it.
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	panics.OnPanic(func(e *panics.Error) { log.Error("panic", "where", e.Where, "value", e.Value, "stack", e.Stack) })
	return p.Serve(ctx, func(ok bool, detail string) {
		// If machined no longer reads, it is about to stop the process; the error has no other
		// receiver.
		_ = reports.Send(p.Name, ok, detail)
	})
}
