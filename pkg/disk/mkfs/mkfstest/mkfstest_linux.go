// Package mkfstest is for tests that make file systems on a real disk. The disk belongs to the
// virtual machine that package vm starts for tests under the product kernel.
package mkfstest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Disk is the first disk of the virtual machine. It is blank when the process of a test begins.
const Disk = "/dev/vda"

// Overwrites is for tests that overwrite Disk. It skips the test, unless the test runs in the
// virtual machine.
func Overwrites(t *testing.T) {
	t.Helper()
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("overwrites a disk: runs under the product kernel only (make kernel)")
	}
}

// Run is an mkfs.Runner that starts the program as a child process.
func Run(ctx context.Context, args ...string) ([]byte, error) {
	output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return output, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, output)
	}
	return output, nil
}
