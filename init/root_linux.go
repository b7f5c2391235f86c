package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// switchRoot makes the mount at sysroot the root of the file system tree. It moves the pseudo file
// systems into it, frees the memory of the initramfs, and moves the mount to "/". It works like
// switch_root(8), because pivot_root(2) cannot leave a ramfs root.
func switchRoot() error {
	for _, m := range earlyMounts {
		if err := mount.Move(m.Target, filepath.Join(sysroot, m.Target)); err != nil {
			return err
		}
	}
	if err := unix.Chdir(sysroot); err != nil {
		return fmt.Errorf("%s: cannot enter: %w", sysroot, err)
	}
	if err := emptyInitramfs(); err != nil {
		return err
	}
	if err := mount.Move(".", "/"); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("%s: cannot make it the root: %w", sysroot, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("/: cannot enter: %w", err)
	}
	return nil
}

// enterGroup moves this process to the control group of machined. The kernel charges memory to the
// group in which a process first uses it, and memory of the root group can be swapped. machined has
// keys in its memory, so it must be in its own group from the start.
func enterGroup() error {
	if err := groupMount.Do(); err != nil {
		return err
	}
	tree := cgroup.Tree(cgroup.Mount)
	for _, parent := range []string{"/", cgroup.System} {
		if err := tree.Make(parent, cgroup.Limits{}); err != nil {
			return err
		}
		if err := tree.Delegate(parent, []string{"memory"}); err != nil {
			return err
		}
	}
	if err := tree.Make(cgroup.Machined, cgroup.Limits{}); err != nil {
		return err
	}
	return tree.Move(cgroup.Machined, os.Getpid())
}

// emptyInitramfs deletes the content of the initramfs, except sysroot and the directory with a root
// in memory. It returns an error if "/" is not in memory.
func emptyInitramfs() error {
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err != nil {
		return fmt.Errorf("initramfs: cannot examine: %w", err)
	}
	if fs.Type != unix.RAMFS_MAGIC && fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("initramfs: cannot empty: / is not in memory (file system type %#x)", fs.Type)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return fmt.Errorf("initramfs: cannot list: %w", err)
	}
	for _, entry := range entries {
		if path := "/" + entry.Name(); path != sysroot && path != bootenv.MediumDir {
			// The boot continues without this memory.
			if err := os.RemoveAll(path); err != nil {
				say(warning, "initramfs: %v", err)
			}
		}
	}
	return nil
}
