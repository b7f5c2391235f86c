package kmod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// moduleCompressed is MODULE_INIT_COMPRESSED_FILE of linux/module.h: the kernel unpacks the file.
const moduleCompressed = 4

// Load carries out a plan. Modules that do not need each other are loaded at the same time: much of
// a driver's start is waiting for its hardware. A module that is loaded already is no error. Load
// goes on after a failure with everything that does not need the failed module, and returns all
// errors.
func Load(steps []Step) error {
	finished := map[string]chan struct{}{}
	failed := map[string]*error{}
	for _, step := range steps {
		finished[step.Name] = make(chan struct{})
		failed[step.Name] = new(error)
	}
	var running sync.WaitGroup
	for _, step := range steps {
		running.Go(func() {
			defer close(finished[step.Name])
			for _, need := range step.After {
				<-finished[need]
			}
			// A failed need is not looked at: what really needs it fails by itself, with the
			// kernel's word.
			*failed[step.Name] = insert(step.File)
		})
	}
	running.Wait()
	var errs []error
	for _, step := range steps {
		if err := *failed[step.Name]; err != nil && !step.Soft {
			errs = append(errs, fmt.Errorf("kernel module %s: cannot load: %w", step.Name, err))
		}
	}
	return errors.Join(errs...)
}

// insert loads one module file. See finit_module(2).
func insert(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(file) != ".ko" {
		flags = moduleCompressed
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// Release is the release of the running kernel, the name of its folder under paths.Modules.
func Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("kernel: cannot read release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// Devices lists the modaliases of the devices that are there and have no driver yet, each once, in
// no order. sys is where sysfs is mounted.
//
// It looks at the lists of devices by bus, where every device that can have a driver stands, and at
// input devices, which have none but a modalias. Walking all of /sys/devices finds the same among
// thirty times as many files: 10 ms against 2 ms on a small virtual machine, and about ten times
// both under emulation.
func Devices(sys string) ([]string, error) {
	var aliases []string
	seen := map[string]bool{}
	for _, pattern := range []string{"bus/*/devices", "class/input"} {
		folders, err := filepath.Glob(filepath.Join(sys, pattern))
		if err != nil {
			return nil, fmt.Errorf("devices: cannot list: %w", err)
		}
		for _, folder := range folders {
			entries, err := os.ReadDir(folder)
			if err != nil {
				return nil, fmt.Errorf("devices: cannot list: %w", err)
			}
			for _, entry := range entries {
				device := filepath.Join(folder, entry.Name())
				text, err := os.ReadFile(filepath.Join(device, "modalias"))
				alias := strings.TrimSpace(string(text))
				if err != nil || alias == "" || seen[alias] {
					continue // most have none; one may be gone
				}
				if _, err := os.Lstat(filepath.Join(device, "driver")); err == nil {
					continue
				}
				seen[alias] = true
				aliases = append(aliases, alias)
			}
		}
	}
	return aliases, nil
}
