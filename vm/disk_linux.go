package vm

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// prepare creates the machine's directory, and the disks and firmware variables that are missing
// there.
func (s MachineSpec) prepare() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("machine %s: cannot create its directory: %w", s.Name, err)
	}
	for _, d := range s.Disks {
		if d.Bus == BusCD {
			continue
		}
		if err := makeDisk(s.diskPath(d), d.Image, d.SizeMiB<<20); err != nil {
			return fmt.Errorf("machine %s: %w", s.Name, err)
		}
	}
	if s.Kernel.Image != "" {
		return nil
	}
	if err := makeDisk(s.Dir+"/"+varsFile, s.Firmware.Vars, 0); err != nil {
		return fmt.Errorf("machine %s: %w", s.Name, err)
	}
	return nil
}

// emptyLogs creates an empty file for the record of each recorded disk (Disk.Record), because QEMU
// does not create this file.
func (s MachineSpec) emptyLogs() error {
	for _, d := range s.Disks {
		if !d.Record {
			continue
		}
		if err := os.WriteFile(s.logPath(d), nil, 0o600); err != nil {
			return fmt.Errorf("log of disk %s: cannot create: %w", d.Name, err)
		}
	}
	return nil
}

// makeDisk creates the file path as a sparse copy of image, enlarged to size bytes. If image is
// empty, the file is blank. An existing file stays unchanged. makeDisk writes a temporary file and
// renames it, so an incomplete disk is never used.
func makeDisk(path, image string, size int64) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disk: %w", err)
	}
	partial := path + ".partial"
	to, err := os.OpenFile(partial, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("disk: cannot create: %w", err)
	}
	defer to.Close()
	if image != "" {
		from, err := os.Open(image)
		if err != nil {
			return fmt.Errorf("disk: cannot copy the image (is it built?): %w", err)
		}
		defer from.Close()
		length, err := copySparse(to, from)
		if err != nil {
			return fmt.Errorf("disk: cannot copy %s to %s: %w", image, partial, err)
		}
		size = max(size, length)
	}
	if err := to.Truncate(size); err != nil {
		return fmt.Errorf("disk: cannot make %s %d bytes large: %w", partial, size, err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// copySparse copies the data of from without its holes. If the file system can share blocks between
// files, both files share their blocks instead. It returns the length of from in bytes.
func copySparse(to, from *os.File) (int64, error) {
	info, err := from.Stat()
	if err != nil {
		return 0, err
	}
	length := info.Size()
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) == nil {
		return length, nil
	}
	for at := int64(0); at < length; {
		data, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole remains
		}
		if err != nil {
			return 0, err
		}
		hole, err := from.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return 0, err
		}
		if _, err := from.Seek(data, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := to.Seek(data, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.CopyN(to, from, hole-data); err != nil {
			return 0, err
		}
		at = hole
	}
	return length, to.Truncate(length)
}
