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
)

// Spec says how a process is made. Its standard input is Stdin or nothing; it leads a session of
// its own.
type Spec struct {
	Args   []string   // the executable's absolute path and its arguments
	Env    []string   // the whole environment
	Dir    string     // "/" when empty
	Stdin  *os.File   // /dev/null when nil
	Output *os.File   // standard output and error; /dev/null when nil
	Errors *os.File   // standard error, if not nil
	Extra  []*os.File // file descriptors from 3 on
	Cgroup *os.File   // the folder of the control group to be born in; machined's own when nil

	UID, GID     uint32
	Groups       []uint32
	Capabilities []uintptr // see Service
	NoNewPrivs   bool
	OOMScoreAdj  int
	SetOOM       bool // whether OOMScoreAdj is used
	Nice         int
	Rlimits      []Rlimit
}

// start makes the process. The Reaper's lock is held, so that no other process is made meanwhile.
//
// Some attributes cannot be given to syscall.StartProcess, but a child has them from the thread
// that makes it (no_new_privs, the capability bounding set, niceness), so a thread is made for the
// purpose: locked to a goroutine that ends without unlocking it, which makes the Go runtime end the
// thread too. Resource limits belong to the whole process; machined takes the child's for its own
// while it makes it.
func (s Spec) start() (int, error) {
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
		pid, err = s.fork()
	} else {
		made := make(chan struct{})
		go func() {
			defer close(made)
			runtime.LockOSThread() // and never unlocked: nobody else may get this thread
			if err = s.prepareThread(); err == nil {
				pid, err = s.fork()
			}
		}()
		<-made
	}
	if err != nil {
		return 0, fmt.Errorf("%s: cannot start: %w", s.Args[0], err)
	}
	if s.SetOOM {
		// The process has it a moment late; it cannot have used much memory by then. One that has
		// ended already has no use for it, so the error says nothing of interest.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(s.OOMScoreAdj)), 0)
	}
	return pid, nil
}

// prepareThread gives the calling thread what its child shall inherit.
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
				return fmt.Errorf("capability %d: cannot take away: %w", c, err)
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

// lastCapability returns the greatest capability that the kernel knows.
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

func (s Spec) fork() (int, error) {
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
	attr := &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: []uintptr{fd(s.Stdin), fd(s.Output), fd(cmp.Or(s.Errors, s.Output))}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Env == nil {
		attr.Env = []string{} // nil would mean: machined's own
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	for _, f := range s.Extra {
		attr.Files = append(attr.Files, f.Fd())
	}
	if s.Cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(s.Cgroup.Fd())
	}
	if s.UID != 0 || s.GID != 0 || len(s.Groups) > 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: s.UID, Gid: s.GID, Groups: s.Groups}
	}
	if s.UID != 0 {
		attr.Sys.AmbientCaps = s.Capabilities
	}
	pid, _, err := syscall.StartProcess(s.Args[0], s.Args, attr)
	runtime.KeepAlive(s)
	return pid, err
}

// swapRlimits sets limits of this process and returns a function that sets them back.
func swapRlimits(limits []Rlimit) (restore func(), err error) {
	var old []Rlimit
	restore = func() {
		for _, l := range slices.Backward(old) {
			// What was allowed a moment ago is allowed still: raising a hard limit again needs
			// CAP_SYS_RESOURCE, which is checked by the first failure of a service with limits and
			// not worth taking PID 1 down for.
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

// setRlimit goes through package syscall, which otherwise sets a child's limit of open files back
// to what it was when this process began.
func setRlimit(l Rlimit) error {
	return syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard})
}
