// Package confine takes from the calling process what it does not need: privileges, files, system
// calls, memory and processor time. There is no way back. It is for processes that parse what
// strangers sent (apid), or what lies on foreign disks (pkg/diskprobe).
//
// It starts no process, and does not rely on what the parent has taken away already.
package confine

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// Rules say what a process keeps.
type Rules struct {
	Dir         string   // whose files may be read; empty for none at all
	Calls       []uint32 // numbers of the system calls that it makes; all others fail with EPERM
	UnixSockets bool     // socket(2) for Unix sockets
	Ioctls      []uint32 // of ioctl(2); all others fail with EPERM
	Limits      []Limit
}

// Limit is a resource limit (setrlimit(2)), soft and hard.
type Limit struct {
	Resource int // unix.RLIMIT_…
	Max      uint64
}

// Process makes sure that the process can gain nothing and sees nothing but its folder: no new
// privileges through exec, no capabilities, no core dump, no tracing by others of its user, no file
// outside the folder, no TCP connection to anywhere, and only the system calls of the rules. Files
// that are open stay open. A process of root is refused.
func Process(r Rules) error {
	if os.Getuid() == 0 {
		return errors.New("privileges: cannot run as root: the supervisor must start this process as its own user")
	}
	// Linux keeps privileges per thread, and goroutines move between threads: every thread must do
	// it.
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("privileges: cannot set no_new_privs: %w", errno)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("privileges: cannot forbid core dumps: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	for _, l := range r.Limits {
		if err := syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Max, Max: l.Max}); err != nil {
			return fmt.Errorf("privileges: cannot set resource limit %d to %d: %w", l.Resource, l.Max, err)
		}
	}
	// Landlock (landlock(7)), as far as the kernel has it. It does not restrict the connection to a
	// Unix socket, which the socket's own permissions do, nor multipath TCP, which Go listens with.
	// V6 is what Linux 6.12 knows.
	var folders []landlock.Rule
	if r.Dir != "" {
		folders = append(folders, landlock.RODirs(r.Dir))
	}
	if err := landlock.V6.BestEffort().Restrict(folders...); err != nil {
		return fmt.Errorf("privileges: cannot restrict files and ports: %w", err)
	}
	return restrictCalls(r)
}

// dropCapabilities empties the permitted, effective and inheritable sets of every thread
// (capset(2)). A process that is not root has no ambient or bounding capability that could come
// back: no_new_privs forbids gaining any by exec.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return fmt.Errorf("privileges: cannot drop capabilities: %w", errno)
	}
	return nil
}
