// Package confine irrevocably restricts the calling process to the privileges, files, system calls,
// memory and processor time that it needs. It is for processes that parse untrusted input: for
// example from the network (apid, metricsd), from foreign disks (pkg/diskprobe) or in boot images
// (pkg/secureboot).
//
// The package does not start processes, and does not rely on restrictions by the parent process.
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

// Rules lists the remaining permissions of a process.
type Rules struct {
	Dirs        []string // readable directories; empty: the process can open no files
	Calls       []uint32 // numbers of the permitted system calls; all others fail with EPERM
	UnixSockets bool     // permits socket(2) for Unix sockets
	Ioctls      []uint32 // permitted requests of ioctl(2); all others fail with EPERM
	Limits      []Limit
}

// Limit is the soft and the hard value of a resource limit (setrlimit(2)).
type Limit struct {
	Resource int // unix.RLIMIT_…
	Max      uint64
}

// ParserLimits returns the limits of a process that reads open files and writes an answer. memory
// is in bytes of private writable memory, including the 64 MiB that Go reserves for each arena;
// seconds is processor time; files is the number of file descriptors.
func ParserLimits(memory, seconds, files uint64) []Limit {
	const threads = 512 // threads of all processes of the user together
	return []Limit{
		{Resource: unix.RLIMIT_DATA, Max: memory}, {Resource: unix.RLIMIT_CPU, Max: seconds}, {Resource: unix.RLIMIT_NOFILE, Max: files},
		{Resource: unix.RLIMIT_CORE, Max: 0}, {Resource: unix.RLIMIT_FSIZE, Max: 0}, {Resource: unix.RLIMIT_MEMLOCK, Max: 0}, {Resource: unix.RLIMIT_NPROC, Max: threads},
	}
}

// Process restricts the process: no new privileges by exec, no capabilities, no core dump, no
// tracing by other processes of the same user, no opening of files outside Dirs, no TCP
// connections, and only the system calls of the rules. Files that are already open stay usable. It
// returns an error if the process runs as root.
func Process(r Rules) error {
	if os.Getuid() == 0 {
		return errors.New("privileges: cannot run as root: the supervisor must start this process as its own user")
	}
	// Linux stores privileges per thread, and goroutines move between threads, so every thread must
	// make the call.
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
	// Landlock (landlock(7)) applies as far as the kernel supports it; Linux 6.12 supports V6. It
	// restricts neither multipath TCP, which Go uses for listening, nor connections to Unix
	// sockets. For those, the permissions of the socket files apply.
	var dirs []landlock.Rule
	if len(r.Dirs) > 0 {
		dirs = append(dirs, landlock.RODirs(r.Dirs...))
	}
	if err := landlock.V6.BestEffort().Restrict(dirs...); err != nil {
		return fmt.Errorf("privileges: cannot restrict files and ports: %w", err)
	}
	return restrictCalls(r)
}

// dropCapabilities clears the permitted, effective and inheritable sets of every thread
// (capset(2)). Afterwards the process cannot regain capabilities: it has no ambient capabilities,
// because it does not run as root, and no_new_privs prevents new ones by exec.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return fmt.Errorf("privileges: cannot drop capabilities: %w", errno)
	}
	return nil
}
