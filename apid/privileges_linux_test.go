//go:build !cgo

// With cgo, a process has threads that Go's runtime does not know, and syscall.AllThreadsSyscall
// fails. apid is built without cgo.

package apid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

// refusedCalls makes system calls that apid does not need. It returns an error if one of them is
// permitted, or if it cannot create a Unix socket, which apid needs.
func refusedCalls() error {
	if err := exec.Command("/proc/self/exe").Run(); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("another program: got %v", err)
	}
	for name, do := range map[string]func() error{
		"a UDP socket":     func() error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); return err },
		"a netlink socket": func() error { _, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0); return err },
		"a key ring":       func() error { _, err := unix.KeyctlInt(unix.KEYCTL_GET_KEYRING_ID, 0, 0, 0, 0); return err },
		"a user namespace": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"the 32-bit ABI":   func() error { _, _, errno := syscall.RawSyscall(unix.SYS_GETPPID|0x40000000, 0, 0, 0); return errno },
	} {
		if err := do(); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: got %v", name, err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("a Unix socket: %w", err)
	}
	return unix.Close(fd)
}

// TestGiveUpPrivileges checks which operations giveUpPrivileges permits.
func TestGiveUpPrivileges(t *testing.T) {
	portservertest.Confined(t, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "mine"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		portservertest.LeaveRoot(t, paths.UserApid, func() error { return giveUpPrivileges(dir) })
		if err := tryForbidden(dir); err != nil {
			t.Error(err)
		}
	})
}

// tryForbidden drops all privileges, and returns an error if a needed operation fails or a
// forbidden operation succeeds.
func tryForbidden(dir string) error {
	status, err := os.Open("/proc/self/status")
	if err != nil {
		return err
	}
	if err := giveUpPrivileges(dir); err != nil {
		return err
	}
	text, err := io.ReadAll(status)
	if err != nil {
		return err
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
		if !strings.Contains(string(text), want) {
			return fmt.Errorf("/proc/self/status lacks %q:\n%s", want, text)
		}
	}
	if _, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil {
		return fmt.Errorf("a file in the directory of apid: %w", err)
	}
	if _, err := profile.Profile(context.Background(), profile.Request{Kind: "cpu", Duration: 10 * time.Millisecond}); err != nil {
		return fmt.Errorf("a CPU profile of this process: %w", err)
	}
	if err := refusedCalls(); err != nil {
		return err
	}
	abi, err := llsys.LandlockGetABIVersion()
	if err != nil {
		return nil // a kernel without Landlock does not enforce the following limits
	}
	if _, err := os.ReadFile("/etc/passwd"); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("a file outside the directory of apid: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("a new file: got %v", err)
	}
	if abi < 4 {
		return nil // TCP is restricted since ABI 4 (Linux 6.7)
	}
	if c, err := net.Dial("tcp", "127.0.0.1:1"); !errors.Is(err, fs.ErrPermission) {
		if err == nil {
			_ = c.Close()
		}
		return fmt.Errorf("a TCP connection to a server: got %v", err)
	}
	return nil
}
