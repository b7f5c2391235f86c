package kmod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/panics"
)

// moduleCompressed is MODULE_INIT_COMPRESSED_FILE of linux/module.h: the kernel unpacks the file.
const moduleCompressed = 4

// Load executes a plan. It loads independent modules concurrently, because most drivers wait for
// hardware when they start. A module that is already loaded is not an error. After a failure, Load
// continues with the other modules. It returns all errors except those of soft dependencies.
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
			// Load ignores a failed dependency: a module that really needs it fails by itself, with
			// an error of the kernel.
			*failed[step.Name] = panics.Do("kernel module "+step.Name, func() error { return insert(step.Name, step.File) })
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

// parameters maps modules to their parameters. By default, bonding creates a link bond0
// (drivers/net/bonding/bond_main.c), and dummy creates a link dummy0 (drivers/net/dummy.c). A
// configuration could then not create links with these names.
var parameters = map[string]string{"bonding": "max_bonds=0", "dummy": "numdummies=0"}

// insert loads one module file. See finit_module(2).
func insert(name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if filepath.Ext(file) != ".ko" {
		flags = moduleCompressed
	}
	if err := unix.FinitModule(int(f.Fd()), parameters[name], flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// Release returns the release of the running kernel, which is the name of its directory under
// paths.Modules.
func Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("kernel: cannot read release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// Devices returns the modaliases of the present devices that have no driver, without duplicates and
// unsorted. sys is the mount point of sysfs.
//
// It reads the device lists of the buses, which contain every device that can have a driver, and
// the input devices, which are on no bus. A search of all of /sys/devices would find the same
// devices, but would read thirty times as many files. On a small virtual machine, such a search
// takes 10 ms instead of 2 ms.
func Devices(sys string) ([]string, error) {
	var aliases []string
	seen := map[string]bool{}
	for _, pattern := range []string{"bus/*/devices", "class/input"} {
		dirs, err := filepath.Glob(filepath.Join(sys, pattern))
		if err != nil {
			return nil, fmt.Errorf("devices: cannot list: %w", err)
		}
		for _, dir := range dirs {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return nil, fmt.Errorf("devices: cannot list: %w", err)
			}
			for _, entry := range entries {
				device := filepath.Join(dir, entry.Name())
				text, err := os.ReadFile(filepath.Join(device, "modalias"))
				alias := strings.TrimSpace(string(text))
				if err != nil || alias == "" || seen[alias] {
					continue // most devices have no modalias; a device may be gone
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
