package safefile

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Inherited returns an open file that the parent process passed in addition to the standard files:
// the file with the descriptor number in an environment variable, or nil without that variable. It
// removes the variable and marks the descriptor close-on-exec, so that child processes inherit
// neither.
func Inherited(variable string) (*os.File, error) {
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
