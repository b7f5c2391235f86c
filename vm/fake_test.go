package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fakeQEMU is the environment variable that makes the test binary a fake QEMU. With the fake QEMU,
// the tests of all code around machines take milliseconds. The value selects its behavior: "serve"
// runs until a command or a signal ends the process, "fail" ends with an error at the start, and
// "silent" ends without a report.
const fakeQEMU = "ORLOP_FAKE_QEMU"

func TestMain(m *testing.M) {
	switch {
	// the process that Launch starts
	case len(os.Args) > 1 && os.Args[1] == "run-cluster":
		if err := Run(context.Background(), os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case os.Getenv(fakeQEMU) != "" && len(os.Args) > 1 && os.Args[1] == "-name":
		os.Exit(fakeMain(os.Getenv(fakeQEMU), strings.Join(os.Args, " ")))
	default:
		os.Exit(m.Run())
	}
}

// fakeMain is the main function of the fake QEMU, and returns its exit status. It writes to the
// console, answers commands of the monitor, and ends like a guest after a press of its power
// button.
func fakeMain(behaviour, args string) int {
	inherited := func(pattern string) net.Conn {
		m := regexp.MustCompile(pattern).FindStringSubmatch(args)
		fd, err := strconv.Atoi(m[1])
		if err != nil {
			panic(err)
		}
		conn, err := net.FileConn(os.NewFile(uintptr(fd), pattern))
		if err != nil {
			panic(err)
		}
		return conn
	}
	console, monitor := inherited(`id=console,fd=(\d+)`), inherited(`id=qmp,fd=(\d+)`)
	fmt.Fprintf(console, "firmware\r\norlop: stage one of %d\r\n", os.Getpid())
	if m := regexp.MustCompile(`file=(\S+),*\S* -device ide-cd`).FindStringSubmatch(args); m != nil {
		fmt.Fprintf(console, "medium %s\r\n", m[1])
	}
	if behaviour == "fail" {
		fmt.Fprintln(os.Stderr, "qemu: could not open the deck")
		return 3
	}
	fmt.Fprintln(monitor, `{"QMP": {"version": {}, "capabilities": []}}`)
	decoder := json.NewDecoder(monitor)
	for {
		var q struct {
			Execute string `json:"execute"`
			ID      int    `json:"id"`
		}
		if err := decoder.Decode(&q); err != nil {
			return 0
		}
		switch {
		case q.Execute == "screendump":
			fmt.Fprintf(monitor, `{"id": %d, "error": {"class": "GenericError", "desc": "no display"}}`+"\n", q.ID)
			continue
		case q.Execute == "system_reset":
			fmt.Fprintln(monitor, `{"event": "RESET", "data": {"guest": false, "reason": "host-qmp-system-reset"}, "timestamp": {"seconds": 1, "microseconds": 2}}`)
		}
		fmt.Fprintf(monitor, `{"id": %d, "return": {}}`+"\n", q.ID)
		switch {
		case q.Execute == "qmp_capabilities" && behaviour == "silent":
			return 0
		// With -no-reboot, this command stands for a reboot of the guest.
		case q.Execute == "inject-nmi" && strings.Contains(args, "-no-reboot"):
			fmt.Fprintln(monitor, `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}, "timestamp": {"seconds": 1, "microseconds": 2}}`)
			return 0
		case q.Execute == "system_powerdown":
			fmt.Fprintln(monitor, `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}, "timestamp": {"seconds": 1, "microseconds": 2}}`)
			fmt.Fprint(console, "last words\r\n")
			return 0
		}
	}
}

// fakeSpec returns a machine that runs this test binary in place of QEMU.
func fakeSpec(t *testing.T, behaviour string) MachineSpec {
	t.Helper()
	t.Setenv(fakeQEMU, behaviour)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kernel := t.TempDir() + "/vmlinuz"
	if err := os.WriteFile(kernel, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return MachineSpec{Name: "cp1", Dir: t.TempDir(), QEMU: QEMU{Command: self}, Kernel: Kernel{Image: kernel}}
}

func startFake(t *testing.T, spec MachineSpec) *Machine {
	t.Helper()
	m, err := Start(within(t, 20*time.Second), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestPowerButton(t *testing.T) {
	m := startFake(t, fakeSpec(t, "serve"))
	ctx := within(t, 20*time.Second)
	match, err := m.WaitConsole(ctx, regexp.MustCompile(`^orlop: stage (\w+) of (\d+)`))
	if err != nil || match[1] != "one" || match[2] != strconv.Itoa(m.PID()) {
		t.Fatalf("the console shows %q, %v, want stage one and the machine's process", match, err)
	}
	if err := m.Monitor(ctx, "screendump", map[string]any{"filename": "x", "format": "png"}); err == nil || !strings.Contains(err.Error(), "no display") {
		t.Errorf("the error of a command that the monitor rejects is %v", err)
	}
	if err := m.Reset(ctx); err != nil {
		t.Error(err)
	}
	if e := m.Events(); len(e) != 1 || e[0].Name != "RESET" {
		t.Errorf("the events are %+v, want one RESET", e)
	}
	if err := m.PowerOn(ctx); err == nil {
		t.Error("PowerOn accepts a running machine")
	}
	mark := m.Console().Offset()
	if err := m.PowerButton(ctx); err != nil {
		t.Fatal(err)
	}
	exit, err := m.Wait(ctx)
	if err != nil || exit.Err() != nil || exit.Reason != "guest-shutdown" || exit.Code != 0 || exit.Request != "" {
		t.Errorf("after the power button, the machine ended with %s, %v", exit, err)
	}
	if _, err := m.WaitConsoleFrom(ctx, mark, regexp.MustCompile("last words")); err != nil {
		t.Errorf("the last console output is lost: %v", err)
	}
	if m.Running() || m.PID() != 0 {
		t.Error("the machine still runs")
	}
	if err := m.PowerButton(ctx); err == nil || !strings.Contains(err.Error(), "guest-shutdown") {
		t.Errorf("error of the power button of a machine that is off: %v", err)
	}
	if err := m.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	// The output of the previous power-on is ignored.
	if match, err := m.WaitConsole(ctx, regexp.MustCompile(`of (\d+)`)); err != nil || match[1] != strconv.Itoa(m.PID()) {
		t.Errorf("after the second power-on, the console shows %q, %v", match, err)
	}
}

func TestPowerCut(t *testing.T) {
	m := startFake(t, fakeSpec(t, "serve"))
	m.PowerCut()
	exit, err := m.Wait(within(t, 20*time.Second))
	if err != nil || exit.Signal != "killed" || exit.Request != "power cut" || exit.Err() != nil {
		t.Errorf("after the power cut, the machine ended with %s, %v", exit, err)
	}
	m.PowerCut() // a second cut does nothing
}

// TestUnexpectedEnds checks the errors of a QEMU that fails at its start, of a QEMU that ends
// without a report, and of a missing QEMU.
func TestUnexpectedEnds(t *testing.T) {
	_, err := Start(within(t, 20*time.Second), fakeSpec(t, "fail"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "could not open the deck") {
		t.Errorf("Start with a QEMU that fails returns %v", err)
	}
	m := startFake(t, fakeSpec(t, "silent"))
	_, err = m.WaitConsole(within(t, 20*time.Second), regexp.MustCompile("never"))
	if err == nil || !strings.Contains(err.Error(), "the machine ended first: exit status 0") || !strings.Contains(err.Error(), "orlop: stage one") {
		t.Errorf("WaitConsole with a QEMU that ends without a report returns %v", err)
	}
	exit, err := m.Wait(within(t, 20*time.Second))
	if err != nil || exit.Err() == nil || exit.Reason != "" {
		t.Errorf("the end of QEMU without a report is not an error: %s, %v", exit, err)
	}
	spec := fakeSpec(t, "serve")
	spec.QEMU.Command = "/nonexistent/qemu"
	if _, err := Start(within(t, 20*time.Second), spec); err == nil || !strings.Contains(err.Error(), "qemu-system-x86") {
		t.Errorf("Start with a missing QEMU returns %v", err)
	}
}

// TestSpecIsChecked checks that Start rejects a specification with any of these invalid fields.
func TestSpecIsChecked(t *testing.T) {
	for what, change := range map[string]func(*MachineSpec){
		"name":                       func(s *MachineSpec) { s.Name = "Über" },
		"gateway":                    func(s *MachineSpec) { s.Name = GatewayName },
		"directory":                  func(s *MachineSpec) { s.Dir = "" },
		"memory":                     func(s *MachineSpec) { s.MemoryMiB = 1 },
		"kernel":                     func(s *MachineSpec) { s.Kernel.Image = "/nonexistent/kernel" },
		"firmware":                   func(s *MachineSpec) { s.Kernel.Image, s.Firmware.Code = "", "/nonexistent/code.fd" },
		"arguments without a kernel": func(s *MachineSpec) { s.Kernel.Image, s.Kernel.Append = "", "quiet" },
		"disks":                      func(s *MachineSpec) { s.Disks = []Disk{{Name: "a"}, {Name: "a"}} },
		"image":                      func(s *MachineSpec) { s.Disks = BootDisk("/nonexistent/disk.raw", 0) },
	} {
		spec := fakeSpec(t, "serve")
		change(&spec)
		if m, err := Start(within(t, time.Second), spec); err == nil {
			m.Close()
			t.Errorf("Start accepts an invalid specification: %s", what)
		}
	}
}
