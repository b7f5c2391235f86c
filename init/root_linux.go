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

// switchRoot makes the mount at sysroot the root of the file system tree: the pseudo file systems
// move into it, the memory of the initramfs is freed, and the mount moves to "/". See
// switch_root(8): pivot_root(2) cannot leave a ramfs root.
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
// group that a process has at its first use, and memory of the root group could be swapped: so
// machined, which has keys in its memory, is in its group from its beginning.
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

// emptyInitramfs deletes the content of the first root except the mount point of the next root and
// the system in memory. It fails if the first root is not in memory.
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
			// Memory that cannot be freed must not prevent the boot.
			if err := os.RemoveAll(path); err != nil {
				say(warning, "initramfs: %v", err)
			}
		}
	}
	return nil
}
