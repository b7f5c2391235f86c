package supervise

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Files are the open files that a new process gets.
type Files struct {
	Stdin  *os.File   // standard input; /dev/null if nil
	Output *os.File   // standard output and error; /dev/null if nil
	Errors *os.File   // standard error; Output if nil
	Extra  []*os.File // file descriptors from 3 on
	Cgroup *os.File   // directory of its control group; the group of machined if nil
}

// start creates the process and returns its process ID. The caller holds the lock of the Reaper, so
// no other process is created at the same time.
//
// syscall.StartProcess cannot set no_new_privs, the capability bounding set and the niceness. A
// child inherits these attributes from the thread that creates it. If the process needs one of
// them, start uses a separate thread: a goroutine locks the thread, sets the attributes, creates
// the process, and ends without unlocking the thread. The Go runtime then ends the thread, too.
//
// Resource limits belong to the whole process and not to a thread. While start creates the child,
// machined itself has the limits of the child.
func (s Spec) start(files Files) (int, error) {
	if len(s.Args) == 0 || !filepath.IsAbs(s.Args[0]) {
		return 0, fmt.Errorf("process %q: cannot start: the program needs an absolute path", s.Args)
	}
	restore, err := swapRlimits(s.Rlimits)
	if err != nil {
		return 0, fmt.Errorf("%s: cannot start: %w", s.Args[0], err)
	}
	defer restore()
	pid, err := 0, error(nil)
	if !s.NoNewPrivs && s.Nice == 0 && s.UID == 0 {
		pid, err = s.fork(files)
	} else {
		made := make(chan struct{})
		go func() {
			defer close(made)
			runtime.LockOSThread() // never unlocked, so no other goroutine gets this thread
			err = panics.Do("start of "+s.Args[0], func() (err error) {
				if err = s.prepareThread(); err == nil {
					pid, err = s.fork(files)
				}
				return err
			})
		}()
		<-made
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cannot start: %w", s.Args[0], err)
	}
	if s.OOMScoreAdj != nil {
		// The process runs for a moment before it gets the score, but cannot use much memory in
		// this time. The write fails only if the process has already exited.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(*s.OOMScoreAdj)), 0)
	}
	return pid, nil
}

// prepareThread sets attributes of the calling thread. A child that this thread creates inherits
// them.
func (s Spec) prepareThread() error {
	if s.Nice != 0 {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, s.Nice); err != nil {
			return fmt.Errorf("niceness %d: %w", s.Nice, err)
		}
	}
	if s.UID != 0 {
		for c := uintptr(0); c <= lastCapability(); c++ {
			if slices.Contains(s.Capabilities, c) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("capability %d: cannot drop: %w", c, err)
			}
		}
	}
	if s.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
	}
	return nil
}

// lastCapability returns the highest number of a capability that the running kernel knows.
func lastCapability() uintptr {
	last := uintptr(unix.CAP_LAST_CAP)
	for last < 63 && unix.Prctl(unix.PR_CAPBSET_READ, last+1, 0, 0, 0) == nil {
		last++
	}
	for last > 0 && unix.Prctl(unix.PR_CAPBSET_READ, last, 0, 0, 0) != nil {
		last--
	}
	return last
}

// fork creates the process from the calling thread and returns its process ID.
func (s Spec) fork(files Files) (int, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	fd := func(f *os.File) uintptr {
		if f == nil {
			f = null
		}
		return f.Fd()
	}
	attr := &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: []uintptr{fd(files.Stdin), fd(files.Output), fd(cmp.Or(files.Errors, files.Output))}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Env == nil {
		attr.Env = []string{} // with nil, the child would inherit the environment of machined
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	for _, f := range files.Extra {
		attr.Files = append(attr.Files, f.Fd())
	}
	if files.Cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(files.Cgroup.Fd())
	}
	if s.UID != 0 || s.GID != 0 || len(s.Groups) > 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: s.UID, Gid: s.GID, Groups: s.Groups}
	}
	if s.UID != 0 {
		attr.Sys.AmbientCaps = s.Capabilities
	}
	pid, _, err := syscall.StartProcess(s.Args[0], s.Args, attr)
	runtime.KeepAlive(files)
	return pid, err
}

// swapRlimits sets resource limits of this process, and returns a function that restores the old
// limits.
func swapRlimits(limits []Rlimit) (restore func(), err error) {
	var old []Rlimit
	restore = func() {
		for _, l := range slices.Backward(old) {
			// To restore an old limit, machined may have to raise a hard limit, which needs
			// CAP_SYS_RESOURCE. Without this capability, the restore fails. The error must not end
			// PID 1, so it is ignored; the next service with limits then fails to start.
			_ = setRlimit(l)
		}
	}
	for _, l := range limits {
		var have syscall.Rlimit
		if err := syscall.Getrlimit(l.Resource, &have); err != nil {
			restore()
			return nil, fmt.Errorf("resource limit %d: %w", l.Resource, err)
		}
		old = append(old, Rlimit{l.Resource, have.Cur, have.Max})
		if err := setRlimit(l); err != nil {
			restore()
			return nil, fmt.Errorf("resource limit %d: cannot set to %d (hard %d): %w", l.Resource, l.Soft, l.Hard, err)
		}
	}
	return restore, nil
}

// setRlimit sets a limit by package syscall. If another package set the limit, package syscall
// would give each child the open-file limit that this process had at its start.
func setRlimit(l Rlimit) error {
	return syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard})
}
