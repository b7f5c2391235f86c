// Package tpmtest gives tests an emulated TPM 2.0: the program swtpm of Debian. A test is skipped
// if the program is not installed.
package tpmtest

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/tpm"
)

// Start starts an emulated TPM with an empty state and connects to it. The TPM ends with the test.
func Start(t *testing.T) tpm.Conn {
	t.Helper()
	return StartIn(t, t.TempDir())
}

// StartIn is like Start, but the TPM has the state in the directory dir. The state includes the
// seeds of its keys, and excludes its PCRs. A test that starts a second TPM in the same directory
// must end the first one with a command that shuts the TPM down.
func StartIn(t *testing.T, dir string) tpm.Conn {
	t.Helper()
	command, err := exec.LookPath("swtpm")
	if err != nil {
		t.Skip("swtpm is not installed, which is a package of Debian (imager/host-packages.txt)")
	}
	// t.TempDir can contain a comma, which separates the options of swtpm, and can be too long for
	// the path of a socket.
	run, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	socket := filepath.Join(run, "tpm")
	c := exec.Command(command, "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+socket, "--flags", "not-need-init,startup-clear")
	var complaints bytes.Buffer
	c.Stdout, c.Stderr = &complaints, &complaints
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
			conn.SetDeadline(deadline)
			return tpm.Conn{ReadWriter: conn}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v; swtpm said %s", err, &complaints)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
