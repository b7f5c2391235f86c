// Package fdpass takes over what a process was started with beside its standard files.
package fdpass

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// File returns the open file of which an environment variable has the descriptor's number, or nil
// if there is no such variable. The variable is removed and the descriptor marked close-on-exec, so
// that the process's own children neither see the one nor hold the other.
func File(variable string) (*os.File, error) {
	value, ok := os.LookupEnv(variable)
	if !ok {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("cannot use %s=%q: not a file descriptor from 3 up", variable, value)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot use %s=%d: %w", variable, fd, err)
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, fmt.Errorf("cannot remove %s: %w", variable, err)
	}
	return os.NewFile(uintptr(fd), variable), nil
}
