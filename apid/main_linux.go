package apid

import (
	"context"
	"net"
	"os"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/portserver"
)

// Main runs the apid process: it opens its port, drops its privileges and serves until SIGTERM. It
// returns the exit status. machined starts the process with the variables of the garbage collector
// (GOGC, GOMEMLIMIT).
func Main() int {
	return portserver.Process{
		Name: "apid", Port: paths.PortApid, GiveUpPrivileges: func() error { return giveUpPrivileges(paths.ApidDir) },
		Serve: func(ctx context.Context, listener net.Listener, ready func(ok bool, detail string)) error {
			return Serve(ctx, Options{Listener: listener, Dir: paths.ApidDir, Backend: paths.MachinedSocket, Log: os.Stdout, Ready: ready})
		},
	}.Main()
}
