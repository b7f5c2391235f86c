package notify

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FromEnv returns a Writer to the pipe that the environment names, or nil (which is a Writer that sends nothing) when
// it names none. The variable is removed and the descriptor marked close-on-exec, so that the process's own children
// neither see the one nor hold the other. Call it once, early.
func FromEnv() (*Writer, error) {
	value, ok := os.LookupEnv(Env)
	if !ok {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("notify: cannot use %s=%q: not a file descriptor from 3 up", Env, value)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("notify: cannot use %s=%d: %w", Env, fd, err)
	}
	if err := os.Unsetenv(Env); err != nil {
		return nil, fmt.Errorf("notify: cannot remove %s: %w", Env, err)
	}
	return NewWriter(os.NewFile(uintptr(fd), "notify")), nil
}
