package vm

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestFirmwareBoot boots a machine with a blank disk. The firmware finds no system and reports this
// on the serial console. This shows that pflash, disk, console and monitor work.
func TestFirmwareBoot(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a machine, which -short leaves out")
	}
	qemuLock(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	network, err := NewNetwork(NetworkSpec{Capture: t.TempDir() + "/capture.pcap"})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	m, err := Start(ctx, MachineSpec{Name: "cp1", Dir: t.TempDir(), MemoryMiB: 256, Disks: BootDisk("", 64), NIC: NIC{Network: network},
		Watchdog: true, RTC: time.Unix(0, 0), Identity: Identity{Serial: "SN,1", UUID: "6f1f6c2e-0000-4000-8000-000000000001"}, Graphics: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := m.WaitConsole(ctx, regexp.MustCompile(`BdsDxe: .*`)); err != nil {
		t.Fatal(err)
	}
	if err := m.Monitor(ctx, "screendump", map[string]any{"filename": t.TempDir() + "/screen.png", "format": "png"}); err != nil {
		t.Error(err)
	}
	if err := m.Pause(ctx); err != nil {
		t.Error(err)
	}
	if err := m.Resume(ctx); err != nil {
		t.Error(err)
	}
	mark := m.Console().Offset()
	if err := m.Reset(ctx); err != nil {
		t.Error(err)
	}
	if _, err := m.WaitConsoleFrom(ctx, mark, regexp.MustCompile(`BdsDxe: .*`)); err != nil {
		t.Error(err)
	}
	if e := m.Events(); !slices.ContainsFunc(e, func(e Event) bool { return e.Name == "RESET" }) {
		t.Errorf("the reset is not among the events: %+v", e)
	}
	m.PowerCut()
	exit, err := m.Wait(ctx)
	if err != nil || exit.Signal != "killed" || exit.Request != "power cut" || exit.Err() != nil {
		t.Errorf("after the power cut, the machine ended with %s, %v", exit, err)
	}
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

// TestProcessorTime reads the processor time (1234 + 66 ticks of 10 ms) from a line of
// /proc/PID/stat. The name of the process, "a) 7 (c", has the separators of the format.
func TestProcessorTime(t *testing.T) {
	got, err := processorTime("42 (a) 7 (c) S 1 42 42 0 -1 4194560 9 0 0 0 1234 66 0 0 20 0 5 0 100\n")
	if err != nil || got != 13*time.Second {
		t.Errorf("processorTime returns %v, %v, want 13 s", got, err)
	}
	for _, text := range []string{"", "42 (a) S 1 2 3", "42 (a) S 1 42 42 0 -1 4194560 9 0 0 0 x 66 0"} {
		if got, err := processorTime(text); err == nil {
			t.Errorf("processorTime accepts %q and returns %v", text, got)
		}
	}
}
