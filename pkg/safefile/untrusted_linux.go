package safefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadUntrusted reads a file in a directory that a less trusted process or person can change at any
// time, for example on a removable medium. It follows no links, and reads only a regular file below
// the directory with at most `most` bytes. It does not block on a pipe. For a missing file the
// error is fs.ErrNotExist.
func ReadUntrusted(dir, name string, most int64) ([]byte, error) {
	dirFD, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot open: %w", dir, err)
	}
	defer unix.Close(dirFD)
	fd, err := unix.Openat2(dirFD, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, or a socket (open(2))
		return nil, fmt.Errorf("%s is not a plain file", name)
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("has no file %s: %w", name, fs.ErrNotExist)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot open: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a plain file", name)
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes; at most %d are taken", name, info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
