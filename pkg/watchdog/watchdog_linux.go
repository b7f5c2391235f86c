// Package watchdog speaks to a hardware watchdog: a timer outside the processor that resets the
// machine unless it is petted in time. init arms it before it looks for the disk; machined receives
// the open file and pets it while the machine is well.
//
// The package decides nothing: when to pet is its user's judgement. See the kernel's
// Documentation/watchdog/watchdog-api.rst.
package watchdog

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Device is where the kernel puts the first watchdog.
const Device = "/dev/watchdog"

// FileEnv names the environment variable that hands an armed watchdog to the next program: the
// number of the open file.
const FileEnv = "ORLOP_WATCHDOG_FD"

// Timeout is how long a machine may hang before it is reset. It must be longer than the longest
// part of the boot in which nobody pets, emulated machines included.
const Timeout = 60 * time.Second

// Watchdog is an armed watchdog. It keeps running when the process ends without Stop: that is its
// purpose.
type Watchdog struct {
	file *os.File
}

// Arm opens the device and starts the timer. The hardware may round the timeout (whole seconds, 1 s
// at least); see Watchdog.Timeout. If there is no watchdog, the error wraps fs.ErrNotExist. One
// process at a time can hold it.
func Arm(device string, timeout time.Duration) (*Watchdog, error) {
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("watchdog: cannot arm: %w", err)
	}
	seconds := max(1, int(timeout/time.Second))
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, seconds); err != nil {
		// It is armed by now, with the timeout it was made with. That is better than none.
		return &Watchdog{f}, nil
	}
	return &Watchdog{f}, nil
}

// Inherit takes over the watchdog that the program before armed, from the value of FileEnv. It
// returns nil if the value is empty: there is no watchdog. Later children do not inherit the file.
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

// Timeout reads how long the watchdog waits for the next Pet.
func (w *Watchdog) Timeout() (time.Duration, error) {
	seconds, err := unix.IoctlGetInt(int(w.file.Fd()), unix.WDIOC_GETTIMEOUT)
	if err != nil {
		return 0, fmt.Errorf("watchdog: cannot read timeout: %w", err)
	}
	return time.Duration(seconds) * time.Second, nil
}

// CausedReset reports whether the machine's last reset came from this watchdog. Much hardware does
// not remember and says no.
func (w *Watchdog) CausedReset() bool {
	status, err := unix.IoctlGetInt(int(w.file.Fd()), unix.WDIOC_GETBOOTSTATUS)
	return err == nil && status&unix.WDIOF_CARDRESET != 0
}

// Pet starts the timer anew.
func (w *Watchdog) Pet() error {
	if _, err := w.file.Write([]byte{0}); err != nil {
		return fmt.Errorf("watchdog: cannot pet: %w", err)
	}
	return nil
}

// Stop disarms the watchdog (the "magic close") and gives it back. Some hardware cannot be disarmed
// (nowayout); it resets the machine later. Before a reboot leave it armed: it sees to it that the
// reboot happens.
func (w *Watchdog) Stop() error {
	if _, err := w.file.Write([]byte{'V'}); err != nil {
		return fmt.Errorf("watchdog: cannot stop: %w", err)
	}
	return w.file.Close()
}
