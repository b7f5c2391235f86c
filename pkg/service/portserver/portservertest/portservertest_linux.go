// Package portservertest has helpers for tests of processes that package portserver starts: a log,
// idle connections, and a child process that drops its privileges.
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

// Log is a log that a test can read while another goroutine writes. The zero value is empty.
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

// Connect opens a number of connections that send nothing. hangUp closes them.
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
			_ = conn.Close() // the tested process may have closed it
		}
	}
}

// inside is an environment variable of the child process. Its value is the directory of the test.
const inside = "ORLOP_TEST_CONFINED"

// Confined calls the function do in a child process that runs only this test, because a process
// cannot undo its restrictions. The child also runs the test from its beginning to the call of
// Confined. The argument of do is a directory to which every user can write.
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

// LeaveRoot changes the user and the group of a process that runs as root. Before the change, it
// checks that giveUpPrivileges rejects root. LeaveRoot does nothing if the process runs as another
// user.
func LeaveRoot(t *testing.T, user int, giveUpPrivileges func() error) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if giveUpPrivileges() == nil {
		t.Fatal("giveUpPrivileges accepts root")
	}
	if err := errors.Join(syscall.Setgid(user), syscall.Setuid(user)); err != nil {
		t.Fatal(err)
	}
}
