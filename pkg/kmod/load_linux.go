package kmod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// moduleCompressed is MODULE_INIT_COMPRESSED_FILE of linux/module.h: the kernel unpacks the file.
const moduleCompressed = 4

// Load carries out a plan. Modules that do not need each other are loaded at the same time: much of a driver's
// start is waiting for its hardware. A module that is loaded already is no error. Load goes on after a failure with
// everything that does not need the failed module, and returns all errors.
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
			// A failed need is not looked at: what really needs it fails by itself, with the kernel's word.
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

// Devices lists the modaliases of all devices that the kernel has found so far and that have no driver yet, each
// once, in no order. sys is where sysfs is mounted.
func Devices(sys string) ([]string, error) {
	var aliases []string
	seen := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(sys, "devices"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // gone while we were reading: a device was removed
			}
			return err
		}
		if entry.Name() != "modalias" {
			return nil
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(path), "driver")); err == nil {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil // some devices refuse to say; they have no driver to load then
		}
		if alias := strings.TrimSpace(string(b)); alias != "" && !seen[alias] {
			seen[alias] = true
			aliases = append(aliases, alias)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("devices: cannot list: %w", err)
	}
	return aliases, nil
}
