package watchdog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestWithoutWatchdog(t *testing.T) {
	if _, err := Arm(filepath.Join(t.TempDir(), "none"), time.Minute); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Arm without a device: %v, want fs.ErrNotExist", err)
	}
	if w, err := Inherit(""); w != nil || err != nil {
		t.Errorf("Inherit of an empty value = %v, %v; want nil, nil", w, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, value := range []string{"x", "1", "-3", "9999", strconv.Itoa(int(null.Fd()))} {
		if _, err := Inherit(value); err == nil {
			t.Errorf("Inherit(%q) succeeds, want an error", value)
		}
	}
}

// TestSoftdog uses the kernel's software watchdog, which behaves like hardware.
func TestSoftdog(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") != "1" {
		t.Skip("resets the machine if it fails: runs under the product kernel only (make kernel)")
	}
	w, err := Arm(Device, 25*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Timeout(); err != nil || got != 25*time.Second {
		t.Errorf("timeout %s, %v, want 25s", got, err)
	}
	value, err := w.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Inherit(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Pet(); err != nil {
		t.Error(err)
	}
	if next.CausedReset() {
		t.Error("CausedReset returns true, although the watchdog has not reset the machine")
	}
	if err := next.Stop(); err != nil {
		t.Error(err)
	}
	again, err := Arm(Device, time.Minute)
	if err != nil {
		t.Fatalf("after Stop: %v", err)
	}
	if err := again.Stop(); err != nil {
		t.Error(err)
	}
}
