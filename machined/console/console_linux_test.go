package console

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/cell"
	"golang.org/x/sys/unix"
)

const identity = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// statuses are the statuses of a machine from power-on to Ready, with a temporary problem, and then
// the status of a machine that is not installed.
var statuses = []Status{
	{Version: "1.0.0", Slot: "A", Stage: "disks", WaitsFor: []string{"the boot disk"}},
	{Version: "1.0.0", Slot: "A", Stage: "configuration", WaitsFor: []string{"an operator: orlopctl apply-config"}, Addresses: []string{"10.0.2.15/24"},
		Endpoint: "10.0.2.15:50000", Identity: identity, Services: []string{"apid running"}},
	{Version: "1.0.0", Slot: "A", Name: "node-1", Kubernetes: "v1.37.2", Stage: "services",
		WaitsFor:  []string{"orchestrator-api: waits for etcd (loading the snapshot), kube-apiserver (waits for etcd; last line: \x1b[31mno\x1b[0m\nleader)"},
		Addresses: []string{"10.0.2.15/24", "fd00::1/64"}, Endpoint: "10.0.2.15:50000", Identity: identity,
		Services: []string{"apid running", "containerd running", "orchestrator-api starting", "orchestrator-controllers starting", "orchestrator-node starting"}},
	{Version: "1.0.0", Slot: "A", Name: "node-1", Kubernetes: "v1.37.2", Stage: "services", Problem: "service containerd: ended with status 1, last line: no space left on device",
		Addresses: []string{"fd00::1/64"}, Endpoint: "10.0.2.15:50000", Identity: identity, Services: []string{"apid running", "containerd backoff"}},
	{Version: "1.0.0", Slot: "A", Name: "node-1", Kubernetes: "v1.37.2", Stage: "ready",
		Addresses: []string{"10.0.2.15/24"}, Endpoint: "10.0.2.15:50000", Identity: identity, Services: []string{"apid running", "containerd running"}},
	{Version: "1.0.0", Medium: "memory", Stage: "not installed", WaitsFor: []string{"being installed on a disk"},
		PairingCode: "8M2QX-04TRA-ZZ9KC-1BDVW"},
}

func TestRender(t *testing.T) {
	var text strings.Builder
	for _, s := range statuses {
		fmt.Fprintf(&text, "%s\n=====\n", Render(s, 80, 25))
	}
	golden.Assert(t, text.String(), "screen.golden")
}

func TestRenderFits(t *testing.T) {
	for _, s := range statuses {
		for _, size := range [][2]int{{80, 25}, {40, 5}, {132, 50}, {1, 1}, {0, 0}} {
			lines := strings.Split(Render(s, size[0], size[1]), "\n")
			if len(lines) > max(size[1], 1) {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > max(size[0], minWidth) || strings.ContainsAny(line, "\x1b\r") {
					t.Errorf("%v: %q", size, line)
				}
			}
		}
	}
}

func TestChanges(t *testing.T) {
	var text strings.Builder
	before := Status{}
	for _, s := range statuses {
		for _, line := range Changes(before, s) {
			text.WriteString("orlop: " + line + "\n")
		}
		if again := Changes(s, s); len(again) != 0 {
			t.Errorf("Changes between equal statuses returns %q", again)
		}
		before = s
	}
	golden.Assert(t, text.String(), "serial.golden")
}

func TestConsolesOfTheKernel(t *testing.T) {
	c := open("tty0 ttyS0 hvc0\n", cell.New(Status{}), nil)
	if fmt.Sprint(c.screen, c.serial) != "[/dev/tty0] [/dev/ttyS0 /dev/hvc0]" {
		t.Error(c.screen, c.serial)
	}
}

// TestSerial runs a console on a pseudo terminal.
func TestSerial(t *testing.T) {
	other, path := pseudoTerminal(t)
	status := cell.New(statuses[0])
	c := &Console{status: status, report: func(err error) { t.Error(err) }, serial: []string{path}, lines: []chan string{make(chan string, lineBuffer)}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	lines := bufio.NewReader(other)
	expect := func(want string) {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("the console has not printed %q: %v", want, err)
			}
			if strings.TrimRight(line, "\r\n") == want {
				return
			}
		}
	}
	expect("orlop: stage: disks")
	// keyboard input must produce no echo
	if _, err := other.WriteString("root\r\n"); err != nil {
		t.Fatal(err)
	}
	status.Set(statuses[1])
	line, err := lines.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "orlop: waits for the boot disk" {
		t.Errorf("%q, %v; want the next line, and no echo of the input", line, err)
	}
	expect("orlop: machine identity " + identity)
	c.Line("something\nhappened")
	expect("orlop: something happened")
	cancel()
	<-ended
}

// TestLineNeverBlocks writes lines to a console without a reader.
func TestLineNeverBlocks(t *testing.T) {
	c := open("ttyS9", cell.New(Status{}), nil)
	for i := range 3 * lineBuffer {
		c.Line(fmt.Sprint("line ", i))
	}
	if got := len(c.lines[0]); got != lineBuffer {
		t.Errorf("%d lines are in the buffer; want %d", got, lineBuffer)
	}
}

// pseudoTerminal returns an end of a pseudo terminal and the path of the other end (pty(7)).
func pseudoTerminal(t *testing.T) (*os.File, string) {
	t.Helper()
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return f, fmt.Sprintf("/dev/pts/%d", number)
}
