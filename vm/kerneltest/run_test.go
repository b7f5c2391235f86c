package kerneltest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/orlop-os/orlop/vm"
)

// productKernel returns the directory of the kernel of `make image`, or of the kernel in
// ORLOP_KERNEL. It skips the test if there is no kernel.
func productKernel(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ORLOP_KERNEL")
	if dir == "" {
		dir = "../../build/qemu/kernel"
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("needs a kernel to boot: `make image`, or ORLOP_KERNEL: %v", err)
	}
	if testing.Short() {
		t.Skip("boots a machine, which -short leaves out")
	}
	return dir
}

func build(t *testing.T, pkg string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return to
}

// qemuLock waits for the right to run an emulated machine, and holds it until the end of the test.
// Only a single test of all packages has this right.
func qemuLock(t *testing.T) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(os.TempDir(), "orlop-qemu-test.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// TestBoot boots the product's kernel and checks NIC, DHCP, DNS, NTP, console, output, connections
// from outside, power button and exit status.
func TestBoot(t *testing.T) {
	kernel := productKernel(t)
	qemuLock(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	file := filepath.Join(t.TempDir(), "capture.pcap")
	network, err := vm.NewNetwork(vm.NetworkSpec{Capture: file})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	var stdout, stderr bytes.Buffer
	o := Options{Kernel: kernel, Program: build(t, "./testdata/bootprobe"), Modules: []string{"virtio_net", "button", "evdev"}, Tools: []string{},
		Machine: vm.MachineSpec{MemoryMiB: 256, NIC: vm.NIC{Network: network}, RTC: time.Date(1971, 2, 3, 4, 5, 6, 0, time.UTC)},
		Stdout:  &stdout, Stderr: &stderr}
	var pressed chan error // the result of useProbe for the last boot
	o.Started = func(m *vm.Machine) {
		pressed = make(chan error, 1)
		go func(pressed chan<- error) { pressed <- useProbe(ctx, network, m) }(pressed)
	}
	result, err := Run(ctx, o)
	if err == nil { // after an error, no machine may have started
		err = errors.Join(<-pressed, result.Err())
	}
	if err != nil {
		t.Fatalf("%v\nstderr: %s", err, &stderr)
	}
	if result.ExitCode != 7 || result.Exit.Reason != "guest-shutdown" || result.Exit.Err() != nil {
		t.Errorf("the exit status is %d (%s), want 7", result.ExitCode, result.Exit)
	}
	if !strings.Contains(stdout.String(), "dns [10.77.0.11], ntp stratum 1") || !strings.Contains(stderr.String(), "the clock shows 1971") {
		t.Errorf("the probe printed %q on stdout and %q on stderr", &stdout, &stderr)
	}
	if _, err := network.CaptureFile(); err != nil {
		t.Fatal(err)
	}
	report, err := vm.AnalyseCapture(file, network.Subnet())
	if err != nil || report.Inside == 0 || len(report.Outside) > 0 {
		t.Errorf("the capture has no frame inside or a frame to the outside: %+v, %v", report, err)
	}
}

// useProbe waits for the probe, calls it over the closed network and presses the power button.
func useProbe(ctx context.Context, network *vm.Network, m *vm.Machine) error {
	if _, err := m.WaitConsole(ctx, regexp.MustCompile("orlop: probe is ready")); err != nil {
		return err
	}
	conn, err := network.DialContext(ctx, "tcp", netip.AddrPortFrom(m.Addr(), 7).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "ahoy"); err != nil {
		return err
	}
	echo := make([]byte, 4)
	if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "ahoy" {
		return errors.Join(err, errors.New("the probe did not echo ahoy, but "+string(echo)))
	}
	return m.PowerButton(ctx)
}

// TestBadEnds checks that a program that cannot run, a kernel panic and a deadline have different
// results. The deadline is half a second, in which no emulated kernel boots.
func TestBadEnds(t *testing.T) {
	kernel := productKernel(t)
	qemuLock(t)
	program, guest := build(t, "./testdata/bootprobe"), build(t, guestPackage)
	run := func(limit time.Duration, o Options) (Result, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		o.Kernel, o.Modules, o.Tools, o.Machine = kernel, []string{}, []string{}, vm.MachineSpec{MemoryMiB: 256}
		return Run(ctx, o)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	result, err := run(5*time.Minute, Options{Program: text, Init: guest})
	if err != nil || result.Err() == nil || !strings.Contains(result.Failure, "exec format error") {
		t.Errorf("the result of a file that is not a program is %v, %v", err, result.Err())
	}
	result, err = run(5*time.Minute, Options{Program: program, Init: text})
	if err != nil || result.Reported || !strings.Contains(result.Console, "Kernel panic") {
		t.Errorf("the result of a kernel panic is %v, %v", err, result.Err())
	}
	if _, err = run(500*time.Millisecond, Options{Program: program, Init: guest}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error at the deadline is %v", err)
	}
}
