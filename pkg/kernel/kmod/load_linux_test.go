package kmod

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDevices(t *testing.T) {
	sys := t.TempDir()
	for file, content := range map[string]string{
		"bus/pci/devices/1/modalias":      "pci:v1\n",
		"bus/virtio/devices/c/modalias":   "virtio:d2\n",
		"bus/pci/devices/2/modalias":      "pci:v1\n", // the same modalias again
		"bus/pci/devices/3/modalias":      "\n",
		"bus/pci/devices/driven/modalias": "pci:v9\n",
		"bus/pci/devices/driven/driver/x": "",
		"bus/scsi/devices/c/modalias":     "scsi:t-0x00\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(sys, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Devices(sys)
	slices.Sort(got)
	if want := []string{"pci:v1", "scsi:t-0x00", "virtio:d2"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Devices = %q, %v, want %q", got, err, want)
	}
}

// TestLoadGoesOn checks that Load tries the other modules after a module has failed to load, and
// that no module waits forever. The failure of a soft dependency is no error. The boot test of init
// shows that Load loads modules.
func TestLoadGoesOn(t *testing.T) {
	dir := t.TempDir()
	steps := []Step{
		{Name: "a", File: filepath.Join(dir, "a.ko"), Soft: true},
		{Name: "b", File: filepath.Join(dir, "b.ko"), After: []string{"a"}},
		{Name: "c", File: filepath.Join(dir, "c.ko"), After: []string{"a", "b"}},
	}
	err := Load(steps)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Errorf("Load = %v, want an error each for b and c", err)
	}
}

// TestNoLinksByDefault checks the parameters with which the modules bonding and dummy create no
// links when they are loaded. By default they create links such as bond0 and dummy0, and a link of
// Network.spec.links could not have such a name.
func TestNoLinksByDefault(t *testing.T) {
	for module, want := range map[string]string{"bonding": "max_bonds=0", "dummy": "numdummies=0"} {
		if got := parameters[module]; got != want {
			t.Errorf("%s: parameters %q, want %q", module, got, want)
		}
	}
}
