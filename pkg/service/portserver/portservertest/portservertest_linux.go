// Package portservertest has parts of the tests of processes that package portserver starts: a log,
// connections up to a limit, and a child process that drops its privileges.
package portservertest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Log is a log that a test can read while the process writes. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Connect opens connections that send nothing. hangUp closes them.
func Connect(t *testing.T, address string, connections int) (hangUp func()) {
	t.Helper()
	var open []net.Conn
	for range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close() // the process can have closed it
		}
	}
}

// inside is set in the child process: the directory of the test.
const inside = "ORLOP_TEST_CONFINED"

// Confined runs the rest of a test in a child process, because the process cannot undo its
// restrictions: there, it calls do. Every user can write to the directory.
func Confined(t *testing.T, do func(dir string)) {
	t.Helper()
	if dir := os.Getenv(inside); dir != "" {
		do(dir)
		return
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inside+"="+dir)
	out, err := child.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

// LeaveRoot changes the user and the group of a process of root, which giveUpPrivileges must
// reject before. It does nothing in a process of another user.
func LeaveRoot(t *testing.T, user int, giveUpPrivileges func() error) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if giveUpPrivileges() == nil {
		t.Fatal("root was let pass")
	}
	if err := errors.Join(syscall.Setgid(user), syscall.Setuid(user)); err != nil {
		t.Fatal(err)
	}
}
