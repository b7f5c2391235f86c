// Package esp manages the content of the EFI system partition: the boot loader, and the entries of
// the systems that it can start. A power cut during a write leaves the old content or the new
// content, although FAT has no journal (docs/decisions/0081-fat-names.md). The package does not
// decide which system is started: pkg/slot does.
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

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/slot"
)

// Files of the ESP in addition to the entries, relative to its root.
const (
	// Loader is the program that the firmware starts by default (UEFI specification, 3.5.1.1).
	Loader = "EFI/BOOT/BOOTX64.EFI"
	// LoaderConfig is the configuration file of systemd-boot.
	LoaderConfig = "loader/loader.conf"
	// LoaderConfigText makes the loader start the newest system at once, and forbids editing its
	// command line.
	LoaderConfigText = "timeout 0\neditor no\n"
	// KeysDir is the directory with the keys for Secure Boot that systemd-boot enrolls: PK.auth,
	// KEK.auth and db.auth. With this name it can do so without a selection in its menu.
	KeysDir = "loader/keys/auto"
)

// KeyFiles are the files of KeysDir, in the order in which systemd-boot enrolls them.
var KeyFiles = []string{"db.auth", "KEK.auth", "PK.auth"}

// statements is the directory of the signed statements (package bundle) of the systems. By the
// statement, a peer verifies a version that it downloads from this machine.
const statements = "orlop"

// Statement returns the name of the file with the signed statement of a version.
func Statement(version string) string { return statements + "/" + version + ".json" }

// Partition is the EFI system partition. It is mounted only during a read or a write, because FAT
// has no journal.
type Partition struct {
	Device func() (string, error) // returns the path of the partition: "/dev/vda1"
	Target string                 // mount point
	// Modules loads the kernel modules that are necessary to mount it.
	Modules func(names ...string) error
	busy    sync.Mutex
	faults  faults
}

// mounted mounts the ESP, calls do with its root, and unmounts it, which flushes it.
func (e *Partition) mounted(flags mount.Flags, do func(root string) error) error {
	e.busy.Lock()
	defer e.busy.Unlock()
	return e.mount(flags, do)
}

// mount is mounted for a caller that holds busy.
func (e *Partition) mount(flags mount.Flags, do func(root string) error) (err error) {
	device, err := e.Device()
	if err != nil {
		return err
	}
	if err := e.Modules(mount.FATModules()...); err != nil {
		return fmt.Errorf("ESP: %w", err)
	}
	m := mount.Mount{Source: device, Target: e.Target, Type: "vfat", Flags: flags | mount.NoSuid | mount.NoDev | mount.NoExec, Data: "umask=0077"}
	writes := flags&mount.ReadOnly == 0
	defer func() { e.faults.record(writes, err) }()
	if err := e.mountFresh(m); err != nil {
		return fmt.Errorf("ESP: %w", mountError{err})
	}
	defer func() { err = errors.Join(err, mount.Unmount(e.Target)) }()
	err = do(e.Target)
	if writes {
		err = errors.Join(err, stopped(e.Target))
	}
	return err
}

// mountFresh mounts the ESP. An earlier unmount may have failed, and the kernel does not mount a
// file system on itself, or writable while it is mounted read-only.
func (e *Partition) mountFresh(m mount.Mount) error {
	if _, left, err := mount.At(e.Target); err != nil {
		return err
	} else if left {
		if err := mount.Unmount(e.Target); err != nil {
			return err
		}
	}
	return mount.WhileBusy(m.Do)
}

// Entries lists the entries of the boot loader.
func (e *Partition) Entries() (all []slot.Entry, err error) {
	err = e.mounted(mount.ReadOnly, func(root string) error {
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

// Version calls take with the UKI and the signed statement of a version; the statement is nil if
// there is none.
func (e *Partition) Version(version string, take func(uki *os.File, statement []byte) error) error {
	return e.mounted(mount.ReadOnly, func(root string) error {
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

// FreeSpace returns the free space in bytes after the removal of every version except keep.
func (e *Partition) FreeSpace(keep string) (room int64, err error) {
	err = e.mounted(mount.ReadOnly, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil {
			return fmt.Errorf("ESP: cannot read its free space: %w", err)
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

// others calls do for the file of every version except keep, and for files of interrupted writes.
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

// remove removes a file so that no remaining name ever refers to free clusters. Linux frees the
// clusters of a file when its last descriptor is closed, and the disk can write that before the
// removal of the name. Therefore the file stays open until the removal of its name is on disk. A
// power cut in between leaves clusters that belong to no file.
func remove(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	err = os.Remove(name)
	if err == nil {
		err = safefile.SyncDir(filepath.Dir(name))
	}
	return errors.Join(err, f.Close())
}

// unfinished is the suffix of an incomplete boot image; the loader reads *.efi only.
const unfinished = ".new"

// RemoveOthers removes every version except keep, and leaves space in the directory for a rename by
// the firmware.
func (e *Partition) RemoveOthers(keep string) error {
	if err := e.unmounted(removeDuplicates); err != nil {
		return fmt.Errorf("ESP: cannot check for duplicate names: %w", err)
	}
	err := e.mounted(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		if err := others(dir, keep, remove); err != nil {
			return err
		}
		return errors.Join(safefile.SyncDir(dir), removeStatements(filepath.Join(root, statements), filepath.Base(Statement(keep))))
	})
	if err != nil {
		return err
	}
	if err := e.unmounted(trim); err != nil {
		return fmt.Errorf("ESP: cannot trim %s: %w", slot.EntriesDir, err)
	}
	return nil
}

// removeStatements removes all files of a directory except keep. A missing directory is empty.
func removeStatements(dir, keep string) error {
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
	return safefile.SyncDir(dir)
}

// unmounted calls do with the directory of entries while the file system is not mounted.
func (e *Partition) unmounted(do func(fs storage, dir string) error) (err error) {
	e.busy.Lock()
	defer e.busy.Unlock()
	device, err := e.Device()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a success is no proof: it wrote at most a sector
			e.faults.record(true, err)
		}
	}()
	f, err := mount.OpenExclusive(device, os.O_RDWR)
	if err != nil {
		return err
	}
	return errors.Join(do(f, slot.EntriesDir), f.Sync(), f.Close())
}

// AddEntry writes a UKI as a new entry. The file gets the name of an entry after it is complete.
func (e *Partition) AddEntry(entry slot.Entry, uki io.Reader) error {
	return e.mounted(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		return write(filepath.Join(dir, entry.Name()), filepath.Join(dir, entry.Version+unfinished), uki)
	})
}

// Write writes a file of the ESP and creates its parent directories. The file gets its name after
// it is complete.
func (e *Partition) Write(name string, content io.Reader) error {
	return e.mounted(0, func(root string) error {
		full := filepath.Join(root, name)
		return write(full, full+unfinished, content)
	})
}

// write writes a file under a temporary name first. It creates the parent directories.
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
	// the directory entry and the clusters, before the rename
	if err := safefile.SyncDir(dir); err != nil {
		return err
	}
	return rename(temporary, name)
}

// rename renames a file in its directory so that at every instant a name refers to it. FAT stores
// the location of a file in the directory entry of its name. Linux first writes the new entry
// without the location and adds it with the inode of the file (fs/fat/namei_vfat.c, vfat_rename).
// Therefore the file is flushed before the directory: the complete new entry is on disk before the
// old entry is removed, even if they are in different sectors.
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
	return safefile.SyncDir(filepath.Dir(to))
}

// ErrNoEntry is returned when a version has no entry, so that the loader cannot start it.
var ErrNoEntry = errors.New("it has no entry")

// Rename renames the entry of a version, or returns ErrNoEntry: without an error, the missing
// change would stay unnoticed.
func (e *Partition) Rename(to slot.Entry) error {
	twins := e.unmounted(removeDuplicates)
	return e.mounted(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		all, err := entries(dir)
		if err != nil {
			return err
		}
		for _, from := range all {
			if from.Version != to.Version || from == to {
				continue
			}
			// Both names can refer to the same file: the removal of a name would free the clusters
			// of the other.
			if slices.Contains(all, to) {
				return errors.Join(fmt.Errorf("ESP: cannot rename %s: %s exists already", from.Name(), to.Name()), twins)
			}
			return rename(filepath.Join(dir, from.Name()), filepath.Join(dir, to.Name()))
		}
		if slices.Contains(all, to) {
			return nil
		}
		return fmt.Errorf("ESP: version %s cannot become %s: %w", to.Version, to.Name(), ErrNoEntry)
	})
}
