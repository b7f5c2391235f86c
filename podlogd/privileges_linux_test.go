//go:build !cgo

// With cgo, a process has threads that Go's runtime does not know, and system calls on all threads
// fail. podlogd is built without cgo.

package podlogd

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
)

// TestGiveUpPrivileges checks which operations giveUpPrivileges permits.
func TestGiveUpPrivileges(t *testing.T) {
	portservertest.Confined(t, func(dir string) { readConfined(t, dir) })
}

// readConfined delivers lines after giveUpPrivileges, and then tries operations that must fail.
func readConfined(t *testing.T, dir string) {
	portservertest.LeaveRoot(t, paths.UserPodLogs, func() error { return giveUpPrivileges("/") })
	logs := filepath.Join(dir, "logs", "pods")
	check(t, os.MkdirAll(logs, 0o755))
	b := newBenchIn(t, logs)
	outside := filepath.Join(dir, "other")
	check(t, os.WriteFile(outside, nil, 0o600))
	b.write(container, "0.log", out(1, 3)...)
	b.rotate(1)
	b.write(container, "0.log", out(4, 4)...)
	b.rotate(2)
	b.write(container, "0.log", out(5, 6)...)
	r := b.reader(nodespec.PodLogs{}) // opens the connection to machined, here TCP
	if err := giveUpPrivileges(filepath.Dir(logs)); err != nil {
		t.Fatal(err)
	}
	b.deliver(r)
	b.want("without privileges", numbered(1, 6)...)
	if err := exec.Command("/proc/self/exe").Run(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("start of another program: %v", err)
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("a TCP socket: %v", err)
	}
	abi, err := llsys.LandlockGetABIVersion()
	if err != nil || abi < 1 {
		return // a kernel without Landlock cannot enforce the other restrictions
	}
	if _, err := os.ReadFile(outside); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file outside the directory of logs: %v", err)
	}
	if err := os.WriteFile(filepath.Join(logs, "new"), nil, 0o600); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a new file: %v", err)
	}
}
