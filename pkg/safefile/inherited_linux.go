package safefile

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Inherited returns an open file that this process has inherited from its parent. The environment
// variable has the number of the descriptor, 3 or higher. Without the variable, Inherited returns
// nil. It removes the variable and sets close-on-exec, so the child processes of this process get
// no descriptor and no variable.
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
