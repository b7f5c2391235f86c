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

// Files are the open files of a new process.
type Files struct {
	Stdin  *os.File   // /dev/null if nil
	Output *os.File   // standard output and error; /dev/null if nil
	Errors *os.File   // standard error, if not nil
	Extra  []*os.File // file descriptors from 3 on
	Cgroup *os.File   // directory of its initial control group; machined's own if nil
}

// start creates the process. The caller holds the Reaper's lock, so no other process is created
// meanwhile.
//
// syscall.StartProcess cannot set some attributes (no_new_privs, the capability bounding set,
// niceness), but a child inherits them from the thread that creates it. So start uses a separate
// thread: the goroutine locks the thread and exits without unlocking it, which makes the Go runtime
// end the thread too. Resource limits belong to the whole process; machined temporarily adopts the
// limits of the child while it creates the child.
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
			runtime.LockOSThread() // never unlocked: no other goroutine may get this thread
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
		// The process gets the score slightly late, but it cannot have used much memory by then.
		// The write fails only if the process has already exited.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(*s.OOMScoreAdj)), 0)
	}
	return pid, nil
}

// prepareThread sets the attributes of the calling thread that its child inherits.
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

// lastCapability returns the highest capability number of the kernel.
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
		attr.Env = []string{} // nil would mean machined's own
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

// swapRlimits sets limits of this process and returns a function that restores the old limits.
func swapRlimits(limits []Rlimit) (restore func(), err error) {
	var old []Rlimit
	restore = func() {
		for _, l := range slices.Backward(old) {
			// The old limits were allowed before. Raising a hard limit again needs
			// CAP_SYS_RESOURCE; the first failure of a service with limits would show that it is
			// missing. This error must not end PID 1.
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

// setRlimit uses package syscall, which otherwise resets the open-file limit of a child to the
// initial limit of this process.
func setRlimit(l Rlimit) error {
	return syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: l.Soft, Max: l.Hard})
}
