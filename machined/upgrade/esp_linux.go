package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/slot"
)

// ESP is the partition that the firmware reads. It is mounted only while it is looked at or written to: FAT has no journal,
// so the less it is open, the better.
type ESP struct {
	Device string // "/dev/vda1"
	Target string // where it is mounted meanwhile
	// Modules loads what the kernel needs to mount it.
	Modules func(names ...string) error
	busy    sync.Mutex
}

// fatModules are the file system and the character sets that the kernel mounts it with (CONFIG_FAT_DEFAULT_CODEPAGE and
// CONFIG_FAT_DEFAULT_IOCHARSET of Debian's kernels).
var fatModules = []string{"vfat", "nls_cp437", "nls_ascii"}

// with mounts the ESP, calls do with the folder of the entries, and unmounts it, which flushes it.
func (e *ESP) with(flags mount.Flags, do func(dir string) error) (err error) {
	e.busy.Lock()
	defer e.busy.Unlock()
	if err := e.Modules(fatModules...); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	m := mount.Mount{Source: e.Device, Target: e.Target, Type: "vfat", Flags: flags | mount.NoSuid | mount.NoDev | mount.NoExec, Data: "umask=0077"}
	if err := m.Do(); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	defer func() { err = errors.Join(err, mount.Unmount(e.Target)) }()
	return do(filepath.Join(e.Target, slot.Folder))
}

// Entries lists the systems that the boot loader knows.
func (e *ESP) Entries() (all []slot.Entry, err error) {
	err = e.with(mount.ReadOnly, func(dir string) error {
		all, err = entries(dir)
		return err
	})
	return all, err
}

func entries(dir string) ([]slot.Entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("ESP: cannot list: %w", err)
	}
	var all []slot.Entry
	for _, f := range files {
		if entry, ours := slot.ParseEntry(f.Name()); ours {
			all = append(all, entry)
		}
	}
	return all, nil
}

// Room is how much can be written once every version but keep is forgotten, in bytes.
func (e *ESP) Room(keep string) (room int64, err error) {
	err = e.with(mount.ReadOnly, func(dir string) error {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil {
			return fmt.Errorf("ESP: cannot tell its free space: %w", err)
		}
		room = int64(s.Bfree) * s.Bsize
		return others(dir, keep, func(name string) error {
			info, err := os.Stat(name)
			if err == nil {
				room += info.Size()
			}
			return err
		})
	})
	return room, err
}

// others calls do for the file of every version but one, and for what an interrupted write has left.
func others(dir, keep string, do func(name string) error) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("ESP: cannot list: %w", err)
	}
	for _, f := range files {
		entry, ours := slot.ParseEntry(f.Name())
		if ours && entry.Version != keep || filepath.Ext(f.Name()) == unfinished {
			if err := do(filepath.Join(dir, f.Name())); err != nil {
				return fmt.Errorf("ESP: %w", err)
			}
		}
	}
	return nil
}

// unfinished ends the name of a boot image that is not whole yet; the loader looks at *.efi only.
const unfinished = ".new"

// Forget removes every version but one.
func (e *ESP) Forget(keep string) error {
	return e.with(0, func(dir string) error {
		if err := others(dir, keep, os.Remove); err != nil {
			return err
		}
		return flush(dir)
	})
}

// Enter writes a boot image as a new entry. It is whole before it has the name that the loader looks for.
func (e *ESP) Enter(entry slot.Entry, uki []byte) error {
	return e.with(0, func(dir string) error {
		temporary := filepath.Join(dir, entry.Version+unfinished)
		f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("ESP: cannot write: %w", err)
		}
		defer f.Close()
		if _, err := f.Write(uki); err != nil {
			return fmt.Errorf("ESP: cannot write: %w", err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("ESP: cannot write: %w", err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("ESP: cannot write: %w", err)
		}
		if err := flush(dir); err != nil { // its directory entry and its clusters, before another name
			return err
		}
		if err := os.Rename(temporary, filepath.Join(dir, entry.Name())); err != nil {
			return fmt.Errorf("ESP: cannot enter: %w", err)
		}
		return flush(dir)
	})
}

// Rename gives the entry of a version its new name.
func (e *ESP) Rename(to slot.Entry) error {
	return e.with(0, func(dir string) error {
		all, err := entries(dir)
		if err != nil {
			return err
		}
		for _, from := range all {
			if from.Version != to.Version || from == to {
				continue
			}
			if err := os.Rename(filepath.Join(dir, from.Name()), filepath.Join(dir, to.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("ESP: cannot rename: %w", err)
			}
			return flush(dir)
		}
		return nil
	})
}
