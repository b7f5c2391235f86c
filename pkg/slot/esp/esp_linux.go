// Package esp manages the files in the EFI system partition: the boot loader, and the entries that
// it can start. After a power cut during a write, each file has its old or its new content,
// although FAT has no journal (docs/decisions/0081-fat-names.md). pkg/slot decides which entry the
// boot loader starts.
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

// Files in the ESP in addition to the entries, relative to its root.
const (
	// Loader is the program that the firmware starts by default (UEFI specification, 3.5.1.1).
	Loader = "EFI/BOOT/BOOTX64.EFI"
	// LoaderConfig is the configuration file of systemd-boot.
	LoaderConfig = "loader/loader.conf"
	// LoaderConfigText makes systemd-boot start the newest entry without a menu. It forbids changes
	// of the command line in the boot loader.
	LoaderConfigText = "timeout 0\neditor no\n"
	// KeysDir is the directory with the enrollment files for Secure Boot: PK.auth, KEK.auth and
	// db.auth. In a directory with the name auto, systemd-boot enrolls them without a selection in
	// its menu.
	KeysDir = "loader/keys/auto"
)

// KeyFiles are the names of the files in KeysDir, in the order in which systemd-boot enrolls them.
var KeyFiles = []string{"db.auth", "KEK.auth", "PK.auth"}

// statements is the directory with the signed statement (package bundle) of each version. A peer
// that downloads a version from this machine verifies it by the statement.
const statements = "orlop"

// Statement returns the path of the signed statement of a version, relative to the root of the ESP.
func Statement(version string) string { return statements + "/" + version + ".json" }

// Partition is the EFI system partition. It is mounted only for a read or a write, because FAT has
// no journal.
type Partition struct {
	Device func() (string, error) // returns the device path: "/dev/vda1"
	Target string                 // mount point
	// Modules loads the kernel modules that the mount needs.
	Modules func(names ...string) error
	busy    sync.Mutex // held while the ESP is in use
	faults  faults
}

// The method mounted waits until no other access runs. Then it mounts the ESP, calls the function
// do with the mount point, and unmounts the ESP, which flushes it.
func (e *Partition) mounted(flags mount.Flags, do func(root string) error) error {
	e.busy.Lock()
	defer e.busy.Unlock()
	return e.mount(flags, do)
}

// mount does the work of the method mounted. The caller holds the mutex busy.
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

// mountFresh mounts the ESP. If an earlier unmount failed, the ESP is still mounted, and the kernel
// would reject a second mount, or a writable mount over a read-only one. mountFresh therefore
// unmounts it first.
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

// Entries returns the boot entries in the ESP.
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

// InMemory returns a copy of the UKI of a version, which needs no mounted ESP.
func (e *Partition) InMemory(version string) (image *os.File, err error) {
	err = e.Version(version, func(uki *os.File, _ []byte) error {
		text, err := io.ReadAll(uki)
		if err == nil {
			image, err = safefile.InMemory("boot image", text)
		}
		return err
	})
	return image, err
}

// Version calls the function do with the UKI of a version and its signed statement. The statement
// is nil if the ESP has none. Version fails if the version has no entry.
func (e *Partition) Version(version string, do func(uki *os.File, statement []byte) error) error {
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
		return do(uki, statement)
	})
}

// FreeSpace returns the number of bytes that would be free after the removal of all versions except
// the version `keep`.
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

// others calls the function do with the path of the entry of each version except the version
// `keep`, and with the path of each unfinished file.
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

// remove removes a file. It holds the file open until the removal of the name is on disk. Linux
// frees the clusters of a file when its last descriptor is closed. If the file were not open, the
// disk could free the clusters before it removes the name, and a power cut would leave a name that
// refers to free clusters. With the open file, a power cut can only leave clusters that belong to
// no file.
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

// unfinished is the suffix of a file that is not complete. The boot loader reads only *.efi.
const unfinished = ".new"

// RemoveOthers removes all versions except the version `keep`. It also trims the directory of
// entries, so that a later rename by the firmware needs no new cluster for it.
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

// removeStatements removes all files in a directory except the file `keep`. A missing directory is
// no error.
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

// unmounted calls the function do with the device and the directory of entries, while the ESP is
// not mounted.
func (e *Partition) unmounted(do func(fs storage, dir string) error) (err error) {
	e.busy.Lock()
	defer e.busy.Unlock()
	device, err := e.Device()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a success is not recorded, because the function writes only a few sectors
			e.faults.record(true, err)
		}
	}()
	f, err := mount.OpenExclusive(device, os.O_RDWR)
	if err != nil {
		return err
	}
	return errors.Join(do(f, slot.EntriesDir), f.Sync(), f.Close())
}

// AddEntry writes a UKI as a new entry. The file gets the name of the entry when it is complete.
func (e *Partition) AddEntry(entry slot.Entry, uki io.Reader) error {
	return e.mounted(0, func(root string) error {
		dir := filepath.Join(root, slot.EntriesDir)
		return write(filepath.Join(dir, entry.Name()), filepath.Join(dir, entry.Version+unfinished), uki)
	})
}

// Write writes a file in the ESP, and creates its parent directories. The file gets its name when
// it is complete.
func (e *Partition) Write(name string, content io.Reader) error {
	return e.mounted(0, func(root string) error {
		full := filepath.Join(root, name)
		return write(full, full+unfinished, content)
	})
}

// write writes a file under a temporary name, and renames it. It creates the parent directories.
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
	// flush the directory entry and the clusters of the file before the rename
	if err := safefile.SyncDir(dir); err != nil {
		return err
	}
	return rename(temporary, name)
}

// rename renames a file in its directory. After a power cut, the old or the new name refers to the
// complete file, because rename flushes the file before the directory. FAT stores the location of a
// file in its directory entry. At a rename, Linux writes a new directory entry without the
// location, and adds the location when it writes the inode of the file (fs/fat/namei_vfat.c,
// vfat_rename). So the flush of the file writes the complete new entry to disk before the removal
// of the old entry reaches the disk, even if they are in different sectors.
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

// ErrNoEntry is the error for a version that has no entry, so the boot loader cannot start it.
var ErrNoEntry = errors.New("it has no entry")

// Rename renames the entry of a version to the name of to. It returns ErrNoEntry if the version has
// no entry. It fails if entries of both names exist.
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
			// Rename does not remove one of the two entries: after a power cut both can refer to
			// the same clusters, and the removal would free them.
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
