// Package process starts a process without privileges that machined supervises: apid, metricsd or
// podlogd. It opens the pipe for reports to machined (package notify), serves profiles, handles
// signals and drops the privileges. The process serves until SIGTERM.
//
// The package does not decide which privileges remain.
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
	Name string // name in error texts and in reports to machined (package notify)
	// Prepare runs before the privileges are dropped. After SIGTERM, it may return
	// context.Canceled; the exit status is then 0.
	Prepare func(ctx context.Context) error
	// GiveUpPrivileges drops all privileges.
	GiveUpPrivileges func() error
	// Serve serves until ctx ends. It calls ready to report to machined whether the process is
	// ready, with a line for the operator. It writes its log to the standard output.
	Serve func(ctx context.Context, ready func(ok bool, detail string)) error
}

// Main runs the process until SIGTERM. It returns the exit status: 1 after an error, else 0.
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
	// Without a recorder, a panic in a call would end the process with all other calls. A client
	// could cause this panic again and again.
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	panics.OnPanic(func(e *panics.Error) { log.Error("panic", "where", e.Where, "value", e.Value, "stack", e.Stack) })
	return p.Serve(ctx, func(ok bool, detail string) {
		// An error means that machined has closed the pipe, because it is about to stop the
		// process.
		_ = reports.Send(p.Name, ok, detail)
	})
}
