package vm

import (
	"regexp"
	"slices"
	"strings"
)

var (
	anyPanic = regexp.MustCompile(`Kernel panic - not syncing: `)
	// If panic_on_oops is set, oops_end of the kernel (arch/x86/kernel/dumpstack.c) panics with the
	// message "Fatal exception" or "Fatal exception in interrupt".
	oopsPanic = regexp.MustCompile(`Kernel panic - not syncing: Fatal exception`)
	// The first oops since a boot has the number 1. Later oopses are often its consequences.
	firstOops = regexp.MustCompile(`Oops: .* \[#1\]`)
)

// KernelPanic returns the lines of a console around the first panic of a kernel; empty without a
// panic.
func KernelPanic(console string) string {
	lines := strings.Split(console, "\n")
	return around(lines, slices.IndexFunc(lines, anyPanic.MatchString))
}

// KernelBreak returns the lines of a console around the first panic that is a fault of the
// emulator; empty if there is no panic of this kind. The fault is a race in QEMU's emulation of
// several processors (TCG, seen with 7.2): a processor patches kernel code while another processor
// executes this code. The kernel patches code (static keys) while it creates the first control
// group and loads drivers.
//
// The kernel then reports "Oops: int3" in the middle of kmem_cache_free, in about 10 % of the boots
// on a busy computer. With panic_on_oops, it ends with a panic.
//
// KernelBreak attributes a panic to the emulator if the first oops of its boot was an int3, because
// no program of the guest can cause an int3 in the kernel. Every other panic may be a fault of the
// tested system: another oops, a dead init, a damaged root, a lockup.
func KernelBreak(console string) string {
	oops, lines := "", strings.Split(console, "\n")
	for i, line := range lines {
		if firstOops.MatchString(line) {
			oops = line
		}
		if oopsPanic.MatchString(line) && strings.Contains(oops, "Oops: int3: ") {
			return around(lines, i)
		}
	}
	return ""
}

// around returns 40 lines before line i, line i, and 9 lines after it; empty if i is negative.
func around(lines []string, i int) string {
	if i < 0 {
		return ""
	}
	return strings.TrimRight(strings.ReplaceAll(strings.Join(lines[max(0, i-40):min(len(lines), i+10)], "\n"), "\r", ""), "\n")
}
