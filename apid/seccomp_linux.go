package apid

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/confine"
)

// systemCalls are those that apid makes once it serves: Go's runtime, connections, its credentials'
// folder, its log. No other program can be started with them, no file made, no other process looked
// at; of sockets it makes only one for machined's. Taken from strace(1) of this package's tests, in
// which it serves, is profiled and sees its files change, and from Go's runtime.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	// Connections, and what waits for them.
	unix.SYS_ACCEPT4, unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SHUTDOWN, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDTO, unix.SYS_SENDMSG,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_PPOLL,
	// Files, which Landlock bounds.
	unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_LSEEK,
	unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_FCNTL, unix.SYS_GETDENTS64, unix.SYS_READLINKAT,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
	// A profile of the processor.
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
})
