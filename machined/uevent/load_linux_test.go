package uevent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"golang.org/x/sys/unix"
)

// TestListen checks that a Loader receives an event of the kernel. The test causes the event by a
// write to the uevent file of a device, like udev.
func TestListen(t *testing.T) {
	const device = "/sys/devices/virtual/mem/null/uevent"
	if unix.Access(device, unix.W_OK) != nil || os.Getuid() != 0 {
		t.Skip("needs root and a sysfs that can be written")
	}
	l := &Loader{Sys: t.TempDir(), Index: func() (*kmod.Index, error) { return nil, errors.New("not needed") }}
	var mu sync.Mutex
	var got []string
	seen := make(chan struct{})
	l.Each = func(e *Event) {
		mu.Lock()
		defer mu.Unlock()
		if e != nil && e.DevPath == "/devices/virtual/mem/null" && len(got) == 0 {
			got = append(got, e.Action+" "+e.Subsystem+" "+e.Vars["DEVNAME"])
			close(seen)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- l.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("Run ended with %v", err)
	}
	if err := os.WriteFile(device, []byte("change"), 0); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-ctx.Done():
		t.Fatal("the Loader has not received the event")
	}
	mu.Lock()
	if got[0] != "change mem null" {
		t.Errorf("the event is %q, want \"change mem null\"", got[0])
	}
	mu.Unlock()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run ended with %v", err)
	}
}

// TestColdPlug checks that coldPlug finds the devices in a directory with the structure of sysfs,
// and requests each module once. The module files are invalid, so each load fails.
func TestColdPlug(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"sys/bus/pci/devices/a/modalias":    "pci:v1d2\n",
		"sys/bus/pci/devices/b/modalias":    "pci:v1d2\n",
		"sys/bus/virtio/devices/c/modalias": "virtio:d3\n",
		"sys/bus/virtio/devices/c/driver/x": "",
		"sys/class/input/input0/modalias":   "input:b4\n",
		"modules/modules.dep":               "kernel/one.ko: kernel/base.ko\nkernel/base.ko:\nkernel/other.ko:\nkernel/key.ko:\n",
		"modules/modules.alias":             "alias pci:v1d* one\nalias input:b* key\nalias virtio:d3 other\n",
		"modules/modules.builtin":           "",
		"modules/kernel/one.ko":             "no module",
		"modules/kernel/base.ko":            "no module",
		"modules/kernel/other.ko":           "no module",
		"modules/kernel/key.ko":             "no module",
		"modules/modules.softdep":           "",
		"modules/kernel/nothing.txt":        "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var reports []string
	l := &Loader{Sys: filepath.Join(root, "sys"), tried: map[string]bool{},
		Index: func() (*kmod.Index, error) { return kmod.Read(filepath.Join(root, "modules")) },
		Report: func(message string, err error) {
			if err == nil {
				t.Errorf("%s: the load of an invalid module has not failed", message)
			}
			reports = append(reports, message)
		}}
	l.coldPlug()
	l.coldPlug()
	if len(reports) != 1 || !strings.Contains(reports[0], "[key one]") {
		t.Errorf("reports %q; want a single report about the modules key and one; the device of the module other has a driver", reports)
	}
	if !slices.Equal(l.pending, nil) {
		t.Errorf("still pending: %q", l.pending)
	}
}
