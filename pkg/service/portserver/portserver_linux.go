// Package portserver is the start of a process without privileges that serves a TCP port for other
// computers: apid and metricsd. It opens the port, drops the privileges, and serves until SIGTERM.
//
// The package decides neither on callers nor on the remaining privileges.
package portserver

import (
	"context"
	"fmt"
	"net"

	"github.com/orlop-os/orlop/pkg/service/process"
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
	var listener net.Listener
	return process.Process{
		Name: p.Name,
		Prepare: func(context.Context) (err error) {
			if listener, err = net.Listen("tcp", fmt.Sprintf(":%d", p.Port)); err != nil {
				return fmt.Errorf("TCP port %d: cannot listen: %w", p.Port, err)
			}
			return nil
		},
		GiveUpPrivileges: p.GiveUpPrivileges,
		Serve: func(ctx context.Context, ready func(ok bool, detail string)) error {
			return p.Serve(ctx, listener, ready)
		},
	}.Main()
}
