package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// takeLock locks the cluster's directory for this process. It fails if another process holds the
// lock. The kernel releases the lock when the process ends for any reason, and reports the process
// ID of the holder to other processes. So the lock replaces a file with a process ID, which could
// be stale.
func takeLock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cluster: cannot open its lock: %w", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock); err != nil {
		file.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("cluster: cannot run %s: another process runs it", dir)
		}
		return nil, fmt.Errorf("cluster: cannot lock %s: %w", dir, err)
	}
	return file, nil
}

// holder returns the process ID of the cluster's runner; 0 if no runner holds the lock. The runner
// itself must not call holder: POSIX record locks belong to processes, so the runner would get 0,
// and closing the file would release the runner's lock.
func holder(dir string) (int, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cluster: cannot open its lock: %w", err)
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(file.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("cluster: cannot ask for the lock of %s: %w", dir, err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

// killHolder waits for the end of the runner of dir; the machines end with the runner. If kill is
// true, killHolder kills the runner first. It fails if ctx ends before the runner.
func killHolder(ctx context.Context, dir string, kill bool) error {
	pid, err := holder(dir)
	if err != nil || pid == 0 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: cannot watch its runner (process %d): %w", pid, err)
	}
	defer unix.Close(fd)
	// Between holder and PidfdOpen, the runner may have ended, and another process may have got the
	// ID. If the process still holds the lock now, it is the runner.
	if again, err := holder(dir); err != nil || again != pid {
		return err
	}
	if kill {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cluster: cannot kill its runner (process %d): %w", pid, err)
		}
	}
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("cluster: its runner (process %d) does not end: %w", pid, context.Cause(ctx))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int((200 * time.Millisecond).Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cluster: cannot wait for its runner: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// listenControl opens the control socket in dir. The returned function closes it. The path of a
// Unix socket has at most 107 bytes, and the directories of tests have longer paths. So the
// socket's path begins with a file descriptor of dir.
func listenControl(dir string) (net.Listener, func(), error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("cluster: %w", err)
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), socketFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		opened.Close()
		return nil, nil, fmt.Errorf("cluster: cannot remove the old control socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		opened.Close()
		return nil, nil, fmt.Errorf("cluster: cannot open the control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		opened.Close()
		return nil, nil, fmt.Errorf("cluster: cannot protect the control socket: %w", err)
	}
	return listener, func() { listener.Close(); opened.Close() }, nil
}

// dialControl connects to the control socket in dir.
func dialControl(ctx context.Context, dir string) (net.Conn, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), socketFile))
}
