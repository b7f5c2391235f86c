package apid

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// giveUpPrivileges makes sure that the process can gain nothing and sees nothing but its own folder: no new privileges
// through exec, no capabilities, no core dump, no tracing by others of its user, no file outside the folder, no TCP
// connection to anywhere, and only the system calls that serving takes. machined starts apid without most of that; this does not rely on it.
//
// The port must be open and the log be connected when it is called.
func giveUpPrivileges(dir string) error {
	if os.Getuid() == 0 {
		return errors.New("privileges: cannot serve as root: the supervisor must start apid as its own user")
	}
	// Linux keeps privileges per thread, and goroutines move between threads: every thread must do it.
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("privileges: cannot set no_new_privs: %w", errno)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("privileges: cannot forbid core dumps: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	// Landlock (landlock(7)), as far as the kernel has it. It does not restrict the connection to machined's socket,
	// which the socket's own permissions do, nor multipath TCP, which Go listens with. V6 is what Linux 6.12 knows.
	if err := landlock.V6.BestEffort().Restrict(landlock.RODirs(dir)); err != nil {
		return fmt.Errorf("privileges: cannot restrict files and ports: %w", err)
	}
	return restrictCalls()
}

// dropCapabilities empties the permitted, effective and inheritable sets of every thread (capset(2)). A process that
// is not root has no ambient or bounding capability that could come back: no_new_privs forbids gaining any by exec.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return fmt.Errorf("privileges: cannot drop capabilities: %w", errno)
	}
	return nil
}
