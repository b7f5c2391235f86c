package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/bootmedium"
	"github.com/orlop-os/orlop/pkg/mount"
)

// switchRoot makes what is mounted at sysroot the root of the file system tree: the pseudo file
// systems move into it, the initramfs gives its memory back, and the mount moves to "/". See
// switch_root(8): a ramfs root cannot be left with pivot_root(2).
func switchRoot() error {
	for _, m := range namespace {
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

// emptyInitramfs deletes everything in the first root but the mount point of the next, and the
// system that is kept in memory. It refuses to touch anything that does not lie in memory.
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
		if path := "/" + entry.Name(); path != sysroot && path != bootmedium.Dir {
			// Memory that is not given back is no reason not to boot.
			if err := os.RemoveAll(path); err != nil {
				say(warning, "initramfs: %v", err)
			}
		}
	}
	return nil
}
