// Package watchdog controls a hardware watchdog: a timer outside the processor that resets the
// machine unless a process restarts ("pets") the timer in time. init arms the watchdog before it
// searches for the disk; machined inherits the open file and pets the watchdog while the machine is
// healthy.
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

// FileEnv is the environment variable with the file descriptor of an armed watchdog, for the next
// program.
const FileEnv = "ORLOP_WATCHDOG_FD"

// Timeout is how long a machine may hang before it is reset. It must be longer than the longest
// time without a Pet during a boot, even on emulated machines.
const Timeout = 60 * time.Second

// Watchdog is an armed watchdog. If the process exits without Stop, the watchdog continues to run
// and resets the machine.
type Watchdog struct {
	file *os.File
}

// Arm opens the device and starts the timer. The timeout is in whole seconds, at least 1 s; the
// hardware may round it (Watchdog.Timeout). Without a watchdog, the error wraps fs.ErrNotExist.
// Only a single process at a time can open the device.
func Arm(device string, timeout time.Duration) (*Watchdog, error) {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("watchdog: cannot arm: %w", err)
	}
	seconds := max(1, int(timeout/time.Second))
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, seconds); err != nil {
		// Not an error: the watchdog is armed with its default timeout, which is better than no
		// watchdog.
		return &Watchdog{f}, nil
	}
	return &Watchdog{f}, nil
}

// Inherit returns the watchdog of the previous program. value is the value of FileEnv. If value is
// empty, there is no watchdog, and Inherit returns nil. Programs that this process starts later do
// not inherit the file.
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

// HandOver keeps the file open when the process executes the next program, and returns the value
// for FileEnv.
func (w *Watchdog) HandOver() (string, error) {
	fd := int(w.file.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return "", fmt.Errorf("watchdog: cannot hand over: %w", err)
	}
	return strconv.Itoa(fd), nil
}

// Timeout returns the time after a Pet at which the watchdog resets the machine.
func (w *Watchdog) Timeout() (time.Duration, error) {
	seconds, err := unix.IoctlGetInt(int(w.file.Fd()), unix.WDIOC_GETTIMEOUT)
	if err != nil {
		return 0, fmt.Errorf("watchdog: cannot read timeout: %w", err)
	}
	return time.Duration(seconds) * time.Second, nil
}

// CausedReset reports whether this watchdog caused the last reset of the machine. On hardware that
// does not record the cause, it always returns false.
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

// Stop disarms the watchdog (the "magic close") and closes it. Some watchdogs cannot be disarmed
// (nowayout) and reset the machine later. Do not call Stop before a reboot: an armed watchdog
// ensures that the reboot happens.
func (w *Watchdog) Stop() error {
	if _, err := w.file.Write([]byte{'V'}); err != nil {
		return fmt.Errorf("watchdog: cannot stop: %w", err)
	}
	return w.file.Close()
}
