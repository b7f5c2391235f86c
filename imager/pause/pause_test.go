package pause

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program compiles pause and returns the path of the executable.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := Compile(dir); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "pause")
}

func TestCompileIsSmallAndTheSame(t *testing.T) {
	a, err := Compile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := Compile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two compilations in two directories differ")
	}
	if len(a) > 4096 {
		t.Errorf("pause has %d bytes, more than one page; it may be linked to a C library", len(a))
	}
}

// TestEndsOnSignal runs pause as the first process of a PID namespace, as in a pod. The kernel
// drops a signal to this process unless the process has a handler or waits for the signal.
func TestEndsOnSignal(t *testing.T) {
	file := program(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := exec.Command(file)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
		if err := c.Start(); errors.Is(err, syscall.EPERM) {
			t.Skip("needs a user namespace, which this machine does not permit")
		} else if err != nil {
			t.Fatal(err)
		}
		waitFor(t, "pause to wait for signals", func() bool { return strings.HasPrefix(proc(c.Process.Pid, "syscall"), rtSigtimedwait+" ") })
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("after %v: %v, want exit status 0", s, err)
		}
	}
}

// rtSigtimedwait is the number of the system call rt_sigtimedwait on x86-64.
const rtSigtimedwait = "128"

// TestReaps checks that pause reaps its children. A shell starts the children and then executes
// pause in its own process, so they become the children of pause. The test needs no namespace.
func TestReaps(t *testing.T) {
	c := exec.Command("sh", "-c", "sleep 0.05 & sleep 0.1 & exec "+program(t))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // pause runs until a signal ends it
		_ = c.Wait()
	})
	waitFor(t, "pause to run", func() bool { return proc(c.Process.Pid, "comm") == "pause\n" })
	waitFor(t, "both children to be reaped", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.Process.Pid))
		return err == nil && len(children) == 0
	})
}

// proc returns the content of a file of a process in /proc, or the text of the error.
func proc(pid int, name string) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatal("waited 20 s for " + what)
		case <-tick.C:
		}
	}
}
