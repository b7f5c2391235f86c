package copytree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Equal reads two directories completely and returns an error that names the first difference: in
// names, types, modes, owners, times, extended attributes or data. It ignores hard links, and the
// extended attributes that Copy omits. It stops when ctx is done. The caller must prevent changes
// of both directories during the comparison.
func Equal(ctx context.Context, a, b string) error {
	one, err := openDir(unix.AT_FDCWD, a)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", a, err)
	}
	defer one.Close()
	other, err := openDir(unix.AT_FDCWD, b)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", b, err)
	}
	defer other.Close()
	c := comparer{ctx: ctx, one: make([]byte, piece), other: make([]byte, piece)}
	if err := c.files(one, other); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	return c.dirs(one, other, &dirNode{})
}

// comparer is the state of a comparison.
type comparer struct {
	ctx        context.Context
	one, other []byte // buffers
}

// errDiffers is the error for files with different data.
var errDiffers = errors.New("the data differ")

// dirs compares the entries of two directories.
func (c comparer) dirs(one, other *os.File, in *dirNode) error {
	names, err := sortedNames(one)
	if err != nil {
		return fmt.Errorf("%s: cannot be read: %w", in.printable(), err)
	}
	copied, err := sortedNames(other)
	if err != nil {
		return fmt.Errorf("%s: the copy cannot be read: %w", in.printable(), err)
	}
	if !slices.Equal(names, copied) {
		return fmt.Errorf("%s: the copy has %d entries instead of %d, or other names", in.printable(), len(copied), len(names))
	}
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.entry(one, other, in, name); err != nil {
			return err
		}
	}
	return nil
}

// sortedNames returns the names in a directory.
func sortedNames(dir *os.File) ([]string, error) {
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// entry compares an entry of both directories.
func (c comparer) entry(one, other *os.File, in *dirNode, name string) error {
	var s unix.Stat_t
	if err := unix.Fstatat(int(one.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: %w", in.printable(name), err)
	}
	flags := unix.O_PATH
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		flags = unix.O_RDONLY
	case unix.S_IFDIR:
		flags = unix.O_DIRECTORY
	}
	a, err := open(int(one.Fd()), name, flags)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", in.printable(name), err)
	}
	defer a.Close()
	b, err := open(int(other.Fd()), name, flags)
	if err != nil {
		return fmt.Errorf("%s: the copy cannot be opened: %w", in.printable(name), err)
	}
	defer b.Close()
	err = c.files(a, b)
	if err == nil && flags == unix.O_RDONLY {
		err = c.data(a, b)
	}
	if err == nil && s.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = sameTarget(a, b)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", in.printable(name), err)
	}
	if flags == unix.O_DIRECTORY {
		return c.dirs(a, b, &dirNode{up: in, name: name, depth: in.depth + 1})
	}
	return nil
}

// files compares the metadata of two open files.
func (c comparer) files(a, b *os.File) error {
	var s, t unix.Stat_t
	if err := errors.Join(unix.Fstat(int(a.Fd()), &s), unix.Fstat(int(b.Fd()), &t)); err != nil {
		return err
	}
	regular := s.Mode&unix.S_IFMT == unix.S_IFREG
	if s.Mode != t.Mode || s.Uid != t.Uid || s.Gid != t.Gid || s.Rdev != t.Rdev || s.Mtim != t.Mtim || regular && s.Size != t.Size {
		return errors.New("the type, mode, owner, time or size differs")
	}
	if s.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	for _, pair := range [][2]*os.File{{a, b}, {b, a}} {
		names, err := listAttributes(procPath(pair[0]))
		if err != nil {
			return fmt.Errorf("its attributes: %w", err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, systemPrefix) {
				continue
			}
			value, err := getAttribute(procPath(pair[0]), name)
			if err != nil {
				return fmt.Errorf("its attribute %q: %w", name, err)
			}
			if copied, err := getAttribute(procPath(pair[1]), name); err != nil || !bytes.Equal(value, copied) {
				return fmt.Errorf("its attribute %q differs", name)
			}
		}
	}
	return nil
}

// data compares the data of two files of the same size. Afterwards it removes both from the page
// cache.
func (c comparer) data(a, b *os.File) error {
	for {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(a, c.one)
		m, other := io.ReadFull(b, c.other)
		if n != m || !bytes.Equal(c.one[:n], c.other[:m]) {
			return errDiffers
		}
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if end && (errors.Is(other, io.EOF) || errors.Is(other, io.ErrUnexpectedEOF)) {
			_ = unix.Fadvise(int(a.Fd()), 0, 0, unix.FADV_DONTNEED)
			_ = unix.Fadvise(int(b.Fd()), 0, 0, unix.FADV_DONTNEED)
			return nil
		}
		if err := errors.Join(err, other); err != nil {
			return err
		}
	}
}

// sameTarget compares the targets of two symbolic links.
func sameTarget(a, b *os.File) error {
	one, other := make([]byte, unix.PathMax), make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(a.Fd()), "", one)
	if err != nil {
		return err
	}
	m, err := unix.Readlinkat(int(b.Fd()), "", other)
	if err != nil {
		return err
	}
	if !bytes.Equal(one[:n], other[:m]) {
		return errors.New("the target of the link differs")
	}
	return nil
}
