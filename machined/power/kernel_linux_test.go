package power

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFindsThePowerButton checks that hasPowerKey finds the ACPI power button, which every virtual
// machine has. See vm/kerneltest:
//
//	go test -exec 'qemu kernel-test -kernel DIR -module button -module evdev' ./machined/power
func TestFindsThePowerButton(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") == "" {
		t.Skip("needs a machine with a power button; runs under vm/kerneltest only")
	}
	paths, err := filepath.Glob("/dev/input/event*")
	if err != nil {
		t.Fatal(err)
	}
	buttons := 0
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		has, err := hasPowerKey(f)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if has {
			buttons++
		}
		f.Close()
	}
	if buttons == 0 {
		t.Errorf("none of %q is a power button", paths)
	}
}
