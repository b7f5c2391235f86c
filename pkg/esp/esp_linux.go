// Package esp owns what lies on the EFI system partition: the boot loader, and the entries of the
// systems that it can start. It writes so that a power cut leaves the old content or the new one,
// although FAT has no journal (docs/decisions/0012-upgrade-order.md). It does not decide what is
// started: that is pkg/slot.
package esp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/slot"
)

// Files of the ESP beside the entries, relative to its root.
const (
	// Loader is where the firmware looks for a program when nobody told it a name (UEFI
	// specification, 3.5.1.1).
	Loader = "EFI/BOOT/BOOTX64.EFI"
	// LoaderConfig are systemd-boot's.
	LoaderConfig = "loader/loader.conf"
	// LoaderConfigText has the loader start the newest system at once, and nobody change its command
	// line.
	LoaderConfigText = "timeout 0\neditor no\n"
)

// statements is the folder of the signed statements (package bundle) of the systems, from which
// another machine learns that what this one gives it is genuine.
const statements = "orlop"

// Statement is the file with the signed statement of a version.
func Statement(version string) string { return statements + "/" + version + ".json" }

// Partition is the partition that the firmware reads. It is mounted only while it is looked at or
// written to: FAT has no journal, so the less it is open, the better.
type Partition struct {
	Device func() (string, error) // finds it: "/dev/vda1"
	Target string                 // where it is mounted meanwhile
	// Modules loads what the kernel needs to mount it.
	Modules func(names ...string) error
	busy    sync.Mutex
}

// with mounts the ESP, calls do with its root, and unmounts it, which flushes it.
func (e *Partition) with(flags mount.Flags, do func(root string) error) (err error) {
	e.busy.Lock()
	defer e.busy.Unlock()
	device, err := e.Device()
	if err != nil {
		return err
	}
	if err := e.Modules(mount.FATModules()...); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	m := mount.Mount{Source: device, Target: e.Target, Type: "vfat", Flags: flags | mount.NoSuid | mount.NoDev | mount.NoExec, Data: "umask=0077"}
	if err := m.Do(); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	defer func() { err = errors.Join(err, mount.Unmount(e.Target)) }()
	return do(e.Target)
}

// Entries lists the systems that the boot loader knows.
func (e *Partition) Entries() (all []slot.Entry, err error) {
	err = e.with(mount.ReadOnly, func(root string) error {
		all, err = entries(filepath.Join(root, slot.EntriesDir))
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

// Version calls take with the boot image and the signed statement of a version; nil if there is
// none.
func (e *Partition) Version(version string, take func(uki *os.File, statement []byte) error) error {
	return e.with(mount.ReadOnly, func(root string) error {
		all, err := entries(filepath.Join(root, slot.EntriesDir))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(s slot.Entry) bool { return s.Version == version })
		if i < 0 {
			return fmt.Errorf("ESP: it has no version %s", version)
		}
		statement, err := os.ReadFile(filepath.Join(root, Statement(version)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("ESP: cannot read: %w", err)
		}
		uki, err := os.Open(filepath.Join(root, slot.EntriesDir, all[i].Name()))
		if err != nil {
			return fmt.Errorf("ESP: cannot read: %w", err)
		}
		defer uki.Close()
		return take(uki, statement)
	})
}

// FreeSpace is how much can be written once every version but keep is forgotten, in bytes.
func (e *Partition) FreeSpace(keep string) (room int64, err error) {
	err = e.with(mount.ReadOnly, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
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

// others calls do for the file of every version but one, and for what an interrupted write has
// left.
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

// remove removes a file in such a way that no name is ever left that leads to free clusters: Linux
// frees a file's clusters when nobody has it open any more, and the disk may write that before the
// name is gone. It is open until its name is gone on the disk. A cut between the two leaves
// clusters that belong to no file.
func remove(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	err = os.Remove(name)
	if err == nil {
		err = durable.SyncDir(filepath.Dir(name))
	}
	return errors.Join(err, f.Close())
}

// unfinished ends the name of a boot image that is not whole yet; the loader looks at *.efi only.
const unfinished = ".new"

// RemoveOthers removes every version but one, and leaves the firmware room to rename in.
func (e *Partition) RemoveOthers(keep string) error {
	if err := e.unmounted(untwin); err != nil {
		return fmt.Errorf("ESP: cannot look for files with two names: %w", err)
	}
	err := e.with(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		if err := others(dir, keep, remove); err != nil {
			return err
		}
		return errors.Join(durable.SyncDir(dir), forgetStatements(filepath.Join(root, statements), filepath.Base(Statement(keep))))
	})
	if err != nil {
		return err
	}
	if err := e.unmounted(trim); err != nil {
		return fmt.Errorf("ESP: cannot trim %s: %w", slot.EntriesDir, err)
	}
	return nil
}

// forgetStatements removes everything of a folder but one file. A folder that is missing is empty.
func forgetStatements(dir, keep string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ESP: cannot list: %w", err)
	}
	for _, f := range files {
		if f.Name() == keep {
			continue
		}
		if err := remove(filepath.Join(dir, f.Name())); err != nil {
			return fmt.Errorf("ESP: %w", err)
		}
	}
	return durable.SyncDir(dir)
}

// unmounted does something with the folder of entries while nobody has the file system mounted.
func (e *Partition) unmounted(do func(fs storage, folder string) error) error {
	e.busy.Lock()
	defer e.busy.Unlock()
	device, err := e.Device()
	if err != nil {
		return err
	}
	// with O_EXCL the kernel refuses a device in use (open(2))
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(f, slot.EntriesDir), f.Sync(), f.Close())
}

// AddEntry writes a boot image as a new entry. It is whole before it has the name that the loader
// looks for.
func (e *Partition) AddEntry(entry slot.Entry, uki io.Reader) error {
	return e.with(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		return write(filepath.Join(dir, entry.Name()), filepath.Join(dir, entry.Version+unfinished), uki)
	})
}

// Write writes a file beside the entries, with the folders above it. It is whole before it has its
// name.
func (e *Partition) Write(name string, content io.Reader) error {
	return e.with(0, func(root string) error {
		full := filepath.Join(root, name)
		return write(full, full+unfinished, content)
	})
}

// write writes a file under another name first; the folder and the folders above it are made.
func write(name, temporary string, content io.Reader) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("ESP: cannot write: %w", err)
	}
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("ESP: cannot write: %w", err)
	}
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return fmt.Errorf("ESP: cannot write: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("ESP: cannot write: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("ESP: cannot write: %w", err)
	}
	// its directory entry and its clusters, before another name
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	return rename(temporary, name)
}

// rename gives a file another name in its folder, so that at every instant one of the two names
// leads to it. FAT keeps in a file's name where the file lies, and Linux writes the new name
// without that at first, which comes with the file's inode (fs/fat/namei_vfat.c, vfat_rename). So
// the file is flushed before the folder: its whole new name is on the disk before the old one goes,
// also where they lie in different sectors.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("ESP: cannot rename: %w", err)
	}
	f, err := os.Open(to)
	if err != nil {
		return fmt.Errorf("ESP: cannot rename: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("ESP: cannot rename: %w", err)
	}
	return durable.SyncDir(filepath.Dir(to))
}

// ErrNoEntry is that a version has no entry, so that the loader does not start it.
var ErrNoEntry = errors.New("it has no entry")

// Rename gives the entry of a version its new name, or says ErrNoEntry: the loader would go on as
// if nothing had been said.
func (e *Partition) Rename(to slot.Entry) error {
	twins := e.unmounted(untwin)
	return e.with(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		all, err := entries(dir)
		if err != nil {
			return err
		}
		for _, from := range all {
			if from.Version != to.Version || from == to {
				continue
			}
			// the same file, as far as is known: the name that goes would take its clusters with it
			if slices.Contains(all, to) {
				return errors.Join(fmt.Errorf("ESP: cannot rename %s: %s is there, too", from.Name(), to.Name()), twins)
			}
			return rename(filepath.Join(dir, from.Name()), filepath.Join(dir, to.Name()))
		}
		if slices.Contains(all, to) {
			return nil
		}
		return fmt.Errorf("ESP: version %s cannot become %s: %w", to.Version, to.Name(), ErrNoEntry)
	})
}
