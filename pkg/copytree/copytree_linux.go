// Package copytree copies a folder with all that is in it as it lies on the disk: the data and the holes of files, owners, modes, times,
// extended attributes and with them ACLs and capabilities, hard links within the folder, symbolic links as they are, and named pipes,
// sockets and device nodes as such. What a restart of the machine would have left in the folder is in the copy. Not kept are attributes
// that chattr(1) sets, the time of change (ctime), and space that is set aside and not written.
//
// The data are shared where the file system can do that (FICLONE), and copied within the kernel otherwise (copy_file_range(2)), in pieces
// each of which is on its way to the disk before the next begins: a copy of a terabyte leaves no terabyte of pages behind that are to be
// written. Nothing makes the copy durable; that, and that nobody writes to either folder meanwhile, is the caller's.
//
// Both folders may be hostile: no path is followed that is longer than one name, and no symbolic link. Libraries (containerd's
// continuity/fs, otiai10/copy) follow paths, fill holes or cannot be stopped halfway.
package copytree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// piece is how many bytes are copied before they are written to the disk: what others wait for on a slow disk, at most.
	piece = 4 << 20
	// deepest is how many folders may lie within each other. Each that is open takes two of the process's descriptors.
	deepest = 512
	// batch is how many names of a folder are read at a time.
	batch = 512
)

// Copy makes to, an empty folder, a copy of the folder from; both lie on one file system. It stops when ctx is done. After an error to has a
// part of what it should have. The error names the file, relative to from.
func Copy(ctx context.Context, from, to string) error {
	source, err := folder(unix.AT_FDCWD, from)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", from, err)
	}
	defer source.Close()
	target, err := folder(unix.AT_FDCWD, to)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", to, err)
	}
	defer target.Close()
	c := copier{ctx: ctx, root: target, share: true, first: map[uint64][]string{}}
	if err := c.folder(source, target, nil); err != nil {
		return err
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &s); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if err := dress(source, target, &s); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{s.Atim, s.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// Idle makes the thread that calls it wait for all others, for the processor and, where the disk's scheduler knows priorities, for the disk.
// It is for a thread that has nothing else to do afterwards.
func Idle() error {
	const (
		process = 1       // IOPRIO_WHO_PROCESS: a thread, 0 is this one
		idle    = 3 << 13 // IOPRIO_CLASS_IDLE (include/uapi/linux/ioprio.h)
	)
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, process, 0, idle); errno != 0 {
		return fmt.Errorf("cannot wait for others at the disk: %w", errno)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
		return fmt.Errorf("cannot wait for others at the processor: %w", err)
	}
	return nil
}

// copier is one copy that goes on.
type copier struct {
	ctx   context.Context
	root  *os.File            // of the copy
	share bool                // the file system may know FICLONE
	first map[uint64][]string // by inode of a file with several names: the way to the one that was copied first
}

// folder opens one, by its last name only.
func folder(parent int, name string) (*os.File, error) { return open(parent, name, unix.O_DIRECTORY) }

// open opens a file, never by a symbolic link and without waiting for the other end of a pipe.
func open(parent int, name string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Openat(parent, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// folder copies what is in source into target. way leads to both, from the roots.
func (c *copier) folder(source, target *os.File, way []string) error {
	if len(way) > deepest {
		return fmt.Errorf("%s...: it lies in more than %d folders: it cannot be copied", printable(way[:8]), deepest)
	}
	for {
		names, err := source.Readdirnames(batch)
		for _, name := range names {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(source, target, way, name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: cannot be read: %w", printable(way), err)
		}
	}
}

// entry copies one file of whatever kind.
func (c *copier) entry(from, to *os.File, way []string, name string) error {
	way = append(slices.Clip(way), name)
	var s unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: %w", printable(way), err)
	}
	kind := s.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && s.Nlink > 1 {
		if earlier := c.first[s.Ino]; earlier != nil {
			if err := c.link(earlier, to, name); err != nil {
				return fmt.Errorf("%s: cannot be linked: %w", printable(way), err)
			}
			return nil
		}
		c.first[s.Ino] = way
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		if err = c.subfolder(from, to, way, &s); err != nil {
			return err // it names a file within
		}
	case unix.S_IFREG:
		err = c.file(from, to, name, &s)
	case unix.S_IFLNK:
		err = symlink(from, to, name, &s)
	default: // pipes, sockets, devices
		err = node(from, to, name, &s)
	}
	if err == nil { // by name and at last: whatever was done before changes it
		err = unix.UtimesNanoAt(int(to.Fd()), name, []unix.Timespec{s.Atim, s.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		if errors.Is(err, c.ctx.Err()) {
			return err
		}
		return fmt.Errorf("%s: cannot be copied: %w", printable(way), err)
	}
	return nil
}

// subfolder copies a folder.
func (c *copier) subfolder(from, to *os.File, way []string, s *unix.Stat_t) error {
	name := way[len(way)-1]
	source, err := folder(int(from.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: cannot be opened: %w", printable(way), err)
	}
	defer source.Close()
	if err := unix.Mkdirat(int(to.Fd()), name, 0o700); err != nil {
		return fmt.Errorf("%s: cannot be copied: %w", printable(way), err)
	}
	target, err := folder(int(to.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: its copy cannot be opened: %w", printable(way), err)
	}
	defer target.Close()
	if err := c.folder(source, target, way); err != nil {
		return err
	}
	if err := dress(source, target, s); err != nil { // after all else: what is made in it would take its default ACL and its group
		return fmt.Errorf("%s: cannot be copied: %w", printable(way), err)
	}
	return nil
}

// file copies a regular file.
func (c *copier) file(from, to *os.File, name string, s *unix.Stat_t) error {
	source, err := open(int(from.Fd()), name, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := open(int(to.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := c.data(int(source.Fd()), int(target.Fd()), s.Size); err != nil {
		return err
	}
	return dress(source, target, s)
}

// data copies what is in a file, and leaves out the holes.
func (c *copier) data(source, target int, size int64) error {
	if size == 0 {
		return nil
	}
	if c.share {
		err := unix.IoctlFileClone(target, source)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EXDEV) {
			return err
		}
		c.share = false
	}
	if err := unix.Ftruncate(target, size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		begin, err := unix.Seek(source, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(source, begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if end > size {
			return errors.New("it grew while it was copied")
		}
		for at = begin; at < end; at += piece {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			if err := copyPiece(source, target, at, min(end-at, piece)); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// copyPiece copies some bytes and has them written. A whole piece is waited for.
func copyPiece(source, target int, at, length int64) error {
	read, write := at, at
	for left := length; left > 0; {
		n, err := unix.CopyFileRange(source, &read, target, &write, int(left), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("it shrank while it was copied")
		}
		left -= int64(n)
	}
	flags := unix.SYNC_FILE_RANGE_WRITE
	if length == piece {
		flags |= unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	}
	if err := unix.SyncFileRange(target, at, length, flags); err != nil {
		return err
	}
	// What others read is more worth having in memory. Advice may be refused.
	_ = unix.Fadvise(source, at, length, unix.FADV_DONTNEED)
	_ = unix.Fadvise(target, at, length, unix.FADV_DONTNEED)
	return nil
}

// link gives a file that was copied before one more name. The way to it is gone again name by name: it may be longer than a path can be.
func (c *copier) link(earlier []string, to *os.File, name string) error {
	parent := c.root
	for _, step := range earlier[:len(earlier)-1] {
		next, err := folder(int(parent.Fd()), step)
		if parent != c.root {
			parent.Close()
		}
		if err != nil {
			return err
		}
		parent = next
	}
	if parent != c.root {
		defer parent.Close()
	}
	return unix.Linkat(int(parent.Fd()), earlier[len(earlier)-1], int(to.Fd()), name, 0)
}

// symlink copies a symbolic link. It has no mode, and no attributes that a pod could set.
func symlink(from, to *os.File, name string, s *unix.Stat_t) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(from.Fd()), name, target)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(target[:n]), int(to.Fd()), name); err != nil {
		return err
	}
	return unix.Fchownat(int(to.Fd()), name, int(s.Uid), int(s.Gid), unix.AT_SYMLINK_NOFOLLOW)
}

// node copies a pipe, a socket or a device node: the name and what it stands for, and nothing behind it.
func node(from, to *os.File, name string, s *unix.Stat_t) error {
	if err := unix.Mknodat(int(to.Fd()), name, s.Mode&unix.S_IFMT|0o600, int(s.Rdev)); err != nil {
		return err
	}
	source, err := open(int(from.Fd()), name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := open(int(to.Fd()), name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer target.Close()
	return dress(source, target, s)
}

// dress gives a copy that is not a symbolic link the owner, the mode and the attributes of what it was made of, in this order: a new owner
// takes bits of the mode and capabilities away, a new mode changes an ACL.
func dress(source, target *os.File, s *unix.Stat_t) error {
	place := behind(target)
	if err := unix.Fchownat(int(target.Fd()), "", int(s.Uid), int(s.Gid), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("its owner: %w", err)
	}
	if err := unix.Chmod(place, s.Mode&0o7777); err != nil {
		return fmt.Errorf("its mode: %w", err)
	}
	names, err := list(behind(source))
	if err != nil {
		return fmt.Errorf("its attributes: %w", err)
	}
	for _, name := range names {
		value, err := get(behind(source), name)
		if err == nil {
			err = unix.Setxattr(place, name, value, 0)
		}
		if err != nil {
			return fmt.Errorf("its attribute %s: %w", name, err)
		}
	}
	return nil
}

// behind is a path that leads to an open file, also to one that is open as a place only (O_PATH).
func behind(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// list returns the names of a file's extended attributes.
func list(place string) ([]string, error) {
	buffer, err := grown(func(b []byte) (int, error) { return unix.Listxattr(place, b) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return strings.FieldsFunc(string(buffer), func(r rune) bool { return r == 0 }), err
}

func get(place, name string) ([]byte, error) {
	return grown(func(b []byte) (int, error) { return unix.Getxattr(place, name, b) })
}

// grown calls what fills a buffer, with one that is large enough.
func grown(fill func([]byte) (int, error)) ([]byte, error) {
	buffer := make([]byte, 4<<10)
	n, err := fill(buffer)
	if errors.Is(err, unix.ERANGE) {
		buffer = make([]byte, 64<<10) // the kernel's limit (include/uapi/linux/limits.h, XATTR_LIST_MAX and XATTR_SIZE_MAX)
		n, err = fill(buffer)
	}
	if err != nil {
		return nil, err
	}
	return buffer[:n], nil
}

// printable is a way for people: names may have anything in them.
func printable(way []string) string { return strconv.Quote(path.Join(way...)) }
