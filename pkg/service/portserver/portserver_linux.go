// Package portserver runs a process without privileges that serves a TCP port for other computers:
// apid or metricsd. The process opens the port, drops its privileges, and serves until SIGTERM.
//
// The package does not decide which clients may connect, or which privileges remain.
package portserver

import (
	"context"
	"fmt"
	"net"

	"github.com/orlop-os/orlop/pkg/service/process"
)

// Process is a process that serves a port.
type Process struct {
	Name string // name in error texts and in reports to machined (package notify)
	Port int
	// GiveUpPrivileges drops all privileges. It runs after the port was opened.
	GiveUpPrivileges func() error
	// Serve serves on the listener, which is plain TCP, until ctx ends. Then it closes the
	// listener. It calls ready to report to machined whether the process is ready, with a line for
	// the operator. It writes its log to the standard output.
	Serve func(ctx context.Context, listener net.Listener, ready func(ok bool, detail string)) error
}

// Main runs the process until SIGTERM. It returns the exit status: 1 after an error, else 0.
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
