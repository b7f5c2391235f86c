// Package watchdog controls a hardware watchdog: a timer outside the processor that resets the
// machine unless a process pets it in time. init arms it before it searches the disk; machined
// receives the open file and pets it while the machine is healthy.
//
// The caller decides when to pet. See the kernel's Documentation/watchdog/watchdog-api.rst.
package watchdog

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Device is the device file of the first watchdog.
const Device = "/dev/watchdog"

// FileEnv is the environment variable that passes an armed watchdog to the next program: the number
// of the open file.
const FileEnv = "ORLOP_WATCHDOG_FD"

// Timeout is how long a machine may hang before it is reset. It must exceed the longest part of the
// boot without a pet, emulated machines included.
const Timeout = 60 * time.Second

// Watchdog is an armed watchdog. It keeps running when the process exits without Stop: that is its
// purpose.
type Watchdog struct {
	file *os.File
}

// Arm opens the device and starts the timer. The hardware may round the timeout (whole seconds, at
// least 1 s); see Watchdog.Timeout. Without a watchdog the error wraps fs.ErrNotExist. Only one
// process at a time can open it.
func Arm(device string, timeout time.Duration) (*Watchdog, error) {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("watchdog: cannot arm: %w", err)
	}
	seconds := max(1, int(timeout/time.Second))
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, seconds); err != nil {
		// The watchdog is armed now, with its default timeout, which is better than none.
		return &Watchdog{f}, nil
	}
	return &Watchdog{f}, nil
}

// Inherit takes over the watchdog of the previous program from the value of FileEnv. For an empty
// value, without a watchdog, it returns nil. Later children do not inherit the file.
func Inherit(value string) (*Watchdog, error) {
	if value == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("watchdog: cannot take over file %q: not a file number", value)
	}
	if _, err := unix.IoctlGetInt(fd, unix.WDIOC_GETTIMEOUT); err != nil {
		return nil, fmt.Errorf("watchdog: cannot take over file %d: %w", fd, err)
	}
	unix.CloseOnExec(fd)
	return &Watchdog{os.NewFile(uintptr(fd), Device)}, nil
}

// HandOver makes the file survive the exec of the next program, and returns the value for FileEnv.
func (w *Watchdog) HandOver() (string, error) {
	fd := int(w.file.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return "", fmt.Errorf("watchdog: cannot hand over: %w", err)
	}
	return strconv.Itoa(fd), nil
}

// Timeout returns the timeout of the watchdog after a Pet.
func (w *Watchdog) Timeout() (time.Duration, error) {
	seconds, err := unix.IoctlGetInt(int(w.file.Fd()), unix.WDIOC_GETTIMEOUT)
	if err != nil {
		return 0, fmt.Errorf("watchdog: cannot read timeout: %w", err)
	}
	return time.Duration(seconds) * time.Second, nil
}

// CausedReset reports whether this watchdog caused the last reset of the machine. Much hardware
// does not record that and reports false.
func (w *Watchdog) CausedReset() bool {
	status, err := unix.IoctlGetInt(int(w.file.Fd()), unix.WDIOC_GETBOOTSTATUS)
	return err == nil && status&unix.WDIOF_CARDRESET != 0
}

// Pet restarts the timer.
func (w *Watchdog) Pet() error {
	if _, err := w.file.Write([]byte{0}); err != nil {
		return fmt.Errorf("watchdog: cannot pet: %w", err)
	}
	return nil
}

// Stop disarms the watchdog (the "magic close") and closes it. Some hardware cannot be disarmed
// (nowayout) and resets the machine later. Before a reboot the watchdog stays armed, so that the
// reboot certainly happens.
func (w *Watchdog) Stop() error {
	if _, err := w.file.Write([]byte{'V'}); err != nil {
		return fmt.Errorf("watchdog: cannot stop: %w", err)
	}
	return w.file.Close()
}
