package extensions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Kernel performs the operations of an activation.
type Kernel interface {
	// Mount mounts an image read-only at a directory, through dm-verity.
	Mount(image, target string, s extension.Statement) error
	// Unmount reverses Mount.
	Unmount(target string) error
	// Overlay makes the directories usr of these mounts visible in /usr, below the system's own
	// files.
	Overlay(targets []string) error
}

// linux is the running kernel.
type linux struct{}

// Linux returns the operations on the running kernel.
func Linux() Kernel { return linux{} }

// deviceName returns the name of the device-mapper device.
func deviceName(s extension.Statement) string { return "ext-" + s.Name }

func (linux) Mount(image, target string, s extension.Statement) (err error) {
	params, err := verity.Parse(s.Root)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	loop, err := attach(image)
	if err != nil {
		return err
	}
	// The kernel detaches the file after the last user of the loop device, which is dm-verity.
	defer func() { err = errors.Join(err, loop.Close()) }()
	device, err := verity.OpenEIO(loop.Name(), params, deviceName(s))
	if err != nil {
		return err
	}
	if err := (mount.Mount{Source: device, Target: target, Type: "erofs", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev}).Do(); err != nil {
		return errors.Join(err, verity.Remove(deviceName(s)))
	}
	if err := verity.RemoveWhenUnused(deviceName(s)); err != nil {
		return errors.Join(err, mount.Unmount(target), verity.Remove(deviceName(s)))
	}
	return nil
}

func (linux) Unmount(target string) error { return mount.Unmount(target) }

func (linux) Overlay(targets []string) error { return overlay(targets).Do() }

// overlay returns the mount on /usr. The system's own /usr is on top, as the first directory.
func overlay(targets []string) mount.Mount {
	lower := []string{"/usr"}
	for _, t := range targets {
		lower = append(lower, t+"/usr")
	}
	return mount.Mount{Source: "overlay", Target: "/usr", Type: "overlay", Flags: mount.ReadOnly | mount.NoSuid | mount.NoDev, Data: "lowerdir=" + strings.Join(lower, ":")}
}

// attach attaches a file to a loop device, read-only.
func attach(name string) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return mount.AttachLoop(file, unix.LO_FLAGS_READ_ONLY|unix.LO_FLAGS_AUTOCLEAR)
}

// compare compares a mounted image with its statement. It returns an error that names the first
// path that differs.
func compare(target string, s extension.Statement) error {
	want := map[string]extension.File{}
	for _, f := range s.Files {
		want[f.Path] = f
	}
	err := filepath.WalkDir(target, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		shown := strings.TrimPrefix(name, target)
		f, named := want[shown]
		if !named {
			return fmt.Errorf("its image has the file %s, which its statement does not name", shown)
		}
		delete(want, shown)
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if d.Type()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(name); err != nil {
				return err
			}
		}
		regular := d.Type().IsRegular() && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0 && info.Size() == f.Size
		if link != f.Target || link == "" && !regular {
			return fmt.Errorf("the file %s of its image is not as in its statement", shown)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, f := range s.Files {
		if _, missing := want[f.Path]; missing {
			return fmt.Errorf("its image lacks the file %s", f.Path)
		}
	}
	return nil
}
