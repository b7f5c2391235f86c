package apid

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/confine"
)

// systemCalls are the system calls that apid may make while it serves: for Go's runtime,
// connections, the directory of its credentials, and its log. With them apid cannot execute
// programs, create files or inspect other processes. New sockets can only connect to machined. The
// list comes from strace(1) of the tests of this package, which serve, make profiles and reload
// files, and from the source of Go's runtime.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	// Connections and polling.
	unix.SYS_ACCEPT4, unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SHUTDOWN, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDTO, unix.SYS_SENDMSG,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_PPOLL,
	// Files. Landlock restricts the paths.
	unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_LSEEK,
	unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_FCNTL, unix.SYS_GETDENTS64, unix.SYS_READLINKAT,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
	// CPU profiles.
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
})
