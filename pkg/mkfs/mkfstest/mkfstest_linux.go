// Package mkfstest is for tests that make file systems on a real disk: that of the machine that hack/qemu starts for a test under the
// product kernel.
package mkfstest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is the machine's first disk, blank when a test's process begins.
const Disk = "/dev/vda"

// Overwrites skips on a developer's machine: the test overwrites Disk.
func Overwrites(t *testing.T) {
	t.Helper()
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("overwrites a disk: runs under the product kernel only (make kernel)")
	}
}

// Run is an mkfs.Runner.
func Run(ctx context.Context, args ...string) ([]byte, error) {
	output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return output, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, output)
	}
	return output, nil
}

// Limited does something on a thread of its own that has given up CAP_SYS_RESOURCE, which a pod does not have either: without it, limits
// hold for root too.
func Limited(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var all [2]unix.CapUserData
		if err := unix.Capget(&header, &all[0]); err != nil {
			result <- err
			return
		}
		all[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
		if err := unix.Capset(&header, &all[0]); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}
