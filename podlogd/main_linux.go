package podlogd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/kernel/confine"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/process"
)

// Main runs the podlogd process: it waits for the socket of machined and for the directory of logs,
// drops its privileges and delivers logs until SIGTERM. It returns the exit status.
func Main() int {
	o := Options{Dir: paths.PodLogs, Client: client(paths.PodLogsSocket), Log: slog.New(slog.NewJSONHandler(os.Stdout, nil))}
	return process.Process{
		Name:             nodespec.ServicePodLogs,
		Prepare:          func(ctx context.Context) error { return prepare(ctx, &o) },
		GiveUpPrivileges: func() error { return giveUpPrivileges(filepath.Dir(o.Dir)) },
		Serve: func(ctx context.Context, ready func(ok bool, detail string)) error {
			ready(true, fmt.Sprintf("reads the logs of pods for %d receivers", len(o.Settings.Receivers)))
			return Serve(ctx, o)
		},
	}.Main()
}

// prepare parses the settings, which are the argument of the process. Then it waits for the socket
// of machined and for the directory of logs, which the kubelet creates.
func prepare(ctx context.Context, o *Options) error {
	if len(os.Args) != 2 {
		return errors.New("usage: podlogd SETTINGS")
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &o.Settings); err != nil {
		return fmt.Errorf("settings: cannot decode: %w", err)
	}
	for _, name := range []string{paths.PodLogsSocket, o.Dir} {
		for {
			if _, err := os.Stat(name); err == nil {
				break
			}
			if err := backoff.Sleep(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// client returns an HTTP client that connects to a Unix socket. Its timeout is a minute, because a
// receiver has up to 30 seconds to answer machined.
func client(socket string) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		IdleConnTimeout: 30 * time.Second,
	}}
}

// giveUpPrivileges drops all privileges and restricts the process to Unix sockets and read access
// to the directory dir. The caller must have opened the log before.
func giveUpPrivileges(dir string) error {
	return confine.Process(confine.Rules{Dirs: []string{dir}, Calls: systemCalls, UnixSockets: true})
}

// systemCalls are the system calls that podlogd may make: for Go's runtime, connections to
// machined, files, and its log. With them podlogd cannot execute programs or create files. New
// sockets can only be Unix sockets.
var systemCalls = slices.Concat(confine.Runtime, []uint32{
	// Connections and polling.
	unix.SYS_CONNECT, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_SHUTDOWN,
	unix.SYS_ACCEPT4, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_SENDTO, unix.SYS_SENDMSG,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_PPOLL,
	// Files. Landlock restricts the paths.
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_CLOSE, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_READV, unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_LSEEK,
	unix.SYS_FSTAT, unix.SYS_NEWFSTATAT, unix.SYS_FCNTL, unix.SYS_GETDENTS64, unix.SYS_READLINKAT,
	// CPU profiles.
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE,
})
