// Package portserver is the start of a process without privileges that serves a TCP port for other
// computers: apid and metricsd. It opens the port, drops the privileges, and serves until SIGTERM.
//
// The package decides neither on callers nor on the remaining privileges.
package portserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/service/notify"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

// Process is a process that serves a port.
type Process struct {
	Name string // in error texts, and for machined (package notify)
	Port int
	// GiveUpPrivileges drops all privileges. The port is open, and the log connected.
	GiveUpPrivileges func() error
	// Serve serves on the listener, which is plain TCP, until ctx ends, and closes the listener.
	// ready reports the readiness with a line for the operator. The log is the standard output.
	Serve func(ctx context.Context, listener net.Listener, ready func(ok bool, detail string)) error
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
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", p.Port))
	if err != nil {
		return fmt.Errorf("TCP port %d: cannot listen: %w", p.Port, err)
	}
	if err := p.GiveUpPrivileges(); err != nil {
		return err
	}
	// Without this, a panic in a call would end all other calls, and a client could repeat it.
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	panics.OnPanic(func(e *panics.Error) { log.Error("panic", "where", e.Where, "value", e.Value, "stack", e.Stack) })
	return p.Serve(ctx, listener, func(ok bool, detail string) {
		// If machined no longer reads, it is about to stop the process; the error has no other
		// receiver.
		_ = reports.Send(p.Name, ok, detail)
	})
}
