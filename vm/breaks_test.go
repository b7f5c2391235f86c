package vm

import (
	"os"
	"strings"
	"testing"
)

// TestKernelBreak checks which consoles show a break of the kernel by the emulator, and which show
// a panic. testdata/int3.txt is the end of the console of a real break, which occurred in a kernel
// test of machined/network under QEMU 7.2 with two processors. The console was stored without the
// first line of the oops. So the first line of the file is written by hand, in the format of
// __die_header in Linux 6.12 (arch/x86/kernel/dumpstack.c).
func TestKernelBreak(t *testing.T) {
	file, err := os.ReadFile("testdata/int3.txt")
	if err != nil {
		t.Fatal(err)
	}
	broken := string(file)
	int3, exception := "[    1.0] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\r\n", "[    1.1] Kernel panic - not syncing: Fatal exception\r\n"
	other := strings.ReplaceAll(int3, "int3", "general protection fault, probably for non-canonical address 0xdead000000000122")
	for _, c := range []struct {
		name, console string
		broke, panics bool
	}{
		{"a boot without a panic", "[    0.0] Linux version 6.12\r\norlop: ready\r\n", false, false},
		{"an empty console", "", false, false},
		{"a real break", broken, true, true},
		{"another oops", strings.ReplaceAll(broken, "Oops: int3: 0000", "Oops: 0002"), false, true},
		{"an int3 that the machine survived", int3 + "orlop: ready\r\n", false, false},
		{"a dead init after an int3", int3 + "[    1.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b\r\n", false, true},
		{"a damaged root", "[    1.1] Kernel panic - not syncing: dm-verity device corrupted\r\n", false, true},
		{"an oops that follows an int3", int3 + strings.ReplaceAll(other, "#1", "#2") + exception, true, true},
		{"an oops after the boot of a survived int3", int3 + "orlop: boots again\r\n" + other + exception, false, true},
		{"a break in a later boot", other + exception + "orlop: boots again\r\n" + int3 + exception, true, true},
		{"a panic whose oops is not on the console", exception, false, true},
	} {
		if got := KernelBreak(c.console); got != "" != c.broke {
			t.Errorf("%s: the break is %q", c.name, got)
		}
		if got := KernelPanic(c.console); got != "" != c.panics {
			t.Errorf("%s: the panic is %q", c.name, got)
		}
	}
	lines := strings.Repeat("before\r\n", 100) + int3 + strings.Repeat("registers\r\n", 10) + exception + strings.Repeat("after\r\n", 100)
	want := strings.Repeat("before\n", 29) + "[    1.0] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n" + strings.Repeat("registers\n", 10) +
		"[    1.1] Kernel panic - not syncing: Fatal exception\n" + strings.TrimSuffix(strings.Repeat("after\n", 9), "\n")
	if got := KernelBreak(lines); got != want {
		t.Errorf("the part of the console is\n%s\nexpected\n%s", got, want)
	}
}
