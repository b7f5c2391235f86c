package apid

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/orlop-os/orlop/pkg/notify"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/profile"
)

// Main is the apid process: it drops its privileges, opens its port and serves until SIGTERM. It
// returns the exit status. machined sets the environment that tunes the garbage collector (GOGC,
// GOMEMLIMIT).
func Main() int {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "apid:", err)
		return 1
	}
	return 0
}

func run() error {
	ready, err := notify.FromEnv()
	if err != nil {
		return err
	}
	if err := profile.FromEnv(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", paths.PortApid))
	if err != nil {
		return fmt.Errorf("TCP port %d: cannot listen: %w", paths.PortApid, err)
	}
	if err := giveUpPrivileges(paths.ApidDir); err != nil {
		return err
	}
	// Without this, a panic in a call would end all other calls, and a client could repeat it.
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	panics.OnPanic(func(e *panics.Error) { log.Error("panic", "where", e.Where, "value", e.Value, "stack", e.Stack) })
	return Serve(ctx, Options{
		Listener: listener,
		Dir:      paths.ApidDir,
		Backend:  paths.MachinedSocket,
		Log:      os.Stdout,
		Ready: func(ok bool, detail string) {
			// If machined no longer reads, it is about to stop apid; the error has no other
			// receiver.
			_ = ready.Send("apid", ok, detail)
		},
	})
}
