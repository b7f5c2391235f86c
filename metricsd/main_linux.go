package metricsd

import (
	"context"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/metricsd/host"
	"github.com/orlop-os/orlop/pkg/kernel/confine"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/portserver"
)

// Main runs the metricsd process: it opens its port, drops its privileges and serves until SIGTERM.
// It returns the exit status.
func Main() int {
	return portserver.Process{
		Name: nodespec.ServiceMetrics, Port: paths.PortMetricsd, GiveUpPrivileges: func() error { return giveUpPrivileges(paths.MetricsdDir) },
		Serve: func(ctx context.Context, listener net.Listener, ready func(ok bool, detail string)) error {
			return Serve(ctx, Options{Listener: listener, Dir: paths.MetricsdDir, Socket: nodespec.MetricsSocket, Host: host.System(), Log: os.Stdout, Ready: ready})
		},
	}.Main()
}

// giveUpPrivileges drops all privileges and restricts the process to files of the kernel, the
// directory dir, and Unix sockets. The caller must have opened the port and the log before.
func giveUpPrivileges(dir string) error {
	return confine.Process(confine.Rules{Dirs: []string{dir, host.Proc, host.Sys}, Calls: systemCalls, UnixSockets: true})
}

// systemCalls are the system calls that metricsd may make while it serves: for Go's runtime,
// connections, files of the kernel, and its log. With them metricsd cannot execute programs or
// create files. New sockets can only be Unix sockets.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	// Connections and polling.
	unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SHUTDOWN, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDTO, unix.SYS_SENDMSG,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_PPOLL,
	// Files. Landlock restricts the paths. SYS_SPLICE is for io.Copy between sockets.
	unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_LSEEK,
	unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_FCNTL, unix.SYS_GETDENTS64, unix.SYS_READLINKAT, unix.SYS_SPLICE,
	// Usage of file systems.
	unix.SYS_STATFS,
	// CPU profiles.
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
})
