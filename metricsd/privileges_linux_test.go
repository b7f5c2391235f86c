//go:build !cgo

// With cgo, a process has threads that Go's runtime does not know, and system calls on all threads
// fail. metricsd is built without cgo.

package metricsd

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
)

// TestGiveUpPrivileges checks which operations giveUpPrivileges permits.
func TestGiveUpPrivileges(t *testing.T) {
	portservertest.Confined(t, func(dir string) { serveConfined(t, dir) })
}

// serveConfined requests metrics after giveUpPrivileges, and then tries operations that must fail.
func serveConfined(t *testing.T, dir string) {
	portservertest.LeaveRoot(t, paths.UserMetrics, func() error { return giveUpPrivileges("/") })
	b := newBenchIn(t, dir)
	file := filepath.Join(dir, "other")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := b.client(b.reader())
	b.want(c, "/metrics/host", "", http.StatusOK, "node_load1 ") // its connection stays open
	if err := giveUpPrivileges(b.dir); err != nil {
		t.Fatal(err)
	}
	b.want(c, "/metrics/host", "", http.StatusOK, `node_scrape_collector_success{collector="filesystem"} 1`)
	b.want(c, "/metrics/host", "", http.StatusOK, `node_scrape_collector_success{collector="netdev"} 1`)
	b.want(c, "/metrics/machine", "", http.StatusOK, "of_machine 1")
	if err := exec.Command("/proc/self/exe").Run(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the start of another program: %v", err)
	}
	if _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("a TCP socket: %v", err)
	}
	abi, err := llsys.LandlockGetABIVersion()
	if err != nil || abi < 1 {
		return // a kernel without Landlock cannot enforce the rest
	}
	if _, err := os.ReadFile(file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file outside its directories: %v", err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "new"), nil, 0o600); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a new file: %v", err)
	}
	if _, err := net.Dial("tcp", "127.0.0.1:1"); err == nil || !strings.Contains(fmt.Sprint(err), "permitted") {
		t.Errorf("a TCP connection to another server: %v", err)
	}
}
