// Package copytree copies a directory with all its entries: data and holes of files, owners, modes,
// times, extended attributes including ACLs and capabilities, hard links within the directory,
// symbolic links, named pipes, sockets and device nodes. The copy does not contain chattr(1)
// attributes, the change time (ctime), preallocated space, and the extended attributes
// trusted.orlop.*, which the system stores for the original only.
//
// If the file system supports it (FICLONE), the copy shares its data blocks with the original.
// Otherwise the kernel copies the data in pieces (copy_file_range(2), or sendfile(2) to another
// file system). The writeback of a piece starts before the next piece is copied, so that a copy of
// a terabyte does not leave a terabyte of dirty pages. The package does not make the copy durable;
// the caller must do that, and must prevent writes to both directories during the copy.
//
// Both directories can be hostile: the package follows no symbolic link, and opens each file of the
// source by its name in an open directory, not by a path. No library is used: containerd's
// continuity/fs and otiai10/copy resolve paths, fill holes or cannot be stopped during a copy.
//
// Equal compares a copy with its original. The caller uses it before it removes the original.
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
	// piece is the number of bytes that are copied before their writeback starts. It is small so
	// that other users of a slow disk do not wait long.
	piece = 4 << 20
	// maxDepth is the maximum depth of directories. Each open directory needs two file descriptors.
	maxDepth = 512
	// batch is the number of names that are read from a directory at a time. Each open directory
	// holds at most this number of names in memory.
	batch = 64
	// A copied file is pending while further hard links to it can follow. maxPending is the maximum
	// number of pending files and of the directories above them. Their names need at most 80 MiB of
	// memory.
	maxPending = 1 << 18
	// systemPrefix is the prefix of extended attributes that the system stores for the original
	// only. Copy and Equal ignore them.
	systemPrefix = "trusted.orlop."
	// An error shows at least the last minShown bytes of a path. A whole path can have 128 KiB.
	minShown = 128
)

// Copy copies the directory `from` to the empty directory `to`. It stops when ctx is done. After an
// error, `to` contains an incomplete copy. The error names the file, relative to `from`. Copy fails
// if too many files are pending (maxPending).
func Copy(ctx context.Context, from, to string) error {
	return newCopier(ctx).tree(from, to)
}

// tree copies the directory `from` to the directory `to`.
func (c *copier) tree(from, to string) error {
	source, err := openDir(unix.AT_FDCWD, from)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", from, err)
	}
	defer source.Close()
	target, err := openDir(unix.AT_FDCWD, to)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", to, err)
	}
	defer target.Close()
	if err := c.dir(source, &dirNode{to: target}); err != nil {
		return err
	}
	var s unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &s); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if err := setMetadata(source, target, &s); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{s.Atim, s.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// Idle gives the calling thread the lowest priority for the processor and, if the disk's scheduler
// supports priorities, for the disk. Idle cannot be undone, so the thread must not be used for
// other work afterwards.
func Idle() error {
	const (
		process = 1       // IOPRIO_WHO_PROCESS: a single thread; its ID 0 means the calling thread
		idle    = 3 << 13 // IOPRIO_CLASS_IDLE (include/uapi/linux/ioprio.h)
	)
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, process, 0, idle); errno != 0 {
		return fmt.Errorf("cannot lower the disk priority: %w", errno)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19); err != nil {
		return fmt.Errorf("cannot lower the CPU priority: %w", err)
	}
	return nil
}

// copier is the state of a copy.
type copier struct {
	ctx     context.Context
	share   bool               // whether to use FICLONE, which has not failed yet
	first   map[uint64]*linked // the pending files, by inode
	pending int                // number of pending files and of the directories above them
	limit   int                // maximum of the field pending
}

func newCopier(ctx context.Context) *copier {
	return &copier{ctx: ctx, share: true, first: map[uint64]*linked{}, limit: maxPending}
}

// dirNode is a directory in the path of a file. The entries of a directory share its dirNode, and
// directories share the dirNodes of their parents. The path of each file instead would need memory
// proportional to the number of files times their depth.
type dirNode struct {
	up      *dirNode // nil for the root
	name    string
	depth   int
	pending int      // number of pending files in it, and of directories in it with pending files
	to      *os.File // its copy; nil after the entries were copied
}

// linked is a file with several hard links, which was copied under the first name that was found.
type linked struct {
	in   *dirNode
	name string
	left int // names that have not been found yet
}

// openDir opens a directory by its name in an open directory.
func openDir(parent int, name string) (*os.File, error) { return open(parent, name, unix.O_DIRECTORY) }

// open opens a file by its name in an open directory. It follows no symbolic link and does not wait
// for the other end of a pipe.
func open(parent int, name string, flags int) (*os.File, error) {
	return retryOpen(name, func() (int, error) {
		return unix.Openat(parent, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
}

// retryOpen calls an open function, again after each interruption by a signal.
func retryOpen(name string, call func() (fd int, err error)) (*os.File, error) {
	for {
		fd, err := call()
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// dir copies the entries of the directory source. The new entries are in the directory in.to.
func (c *copier) dir(source *os.File, in *dirNode) error {
	if in.depth > maxDepth {
		return fmt.Errorf("%s: cannot copy: it is nested in more than %d directories; reduce the depth", in.printable(), maxDepth)
	}
	for {
		names, err := source.Readdirnames(batch)
		for _, name := range names {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			if err := c.entry(source, in, name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: cannot be read: %w", in.printable(), err)
		}
	}
}

// entry copies an entry of any type.
func (c *copier) entry(from *os.File, in *dirNode, name string) error {
	to := in.to
	var s unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: %w", in.printable(name), err)
	}
	kind := s.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && s.Nlink > 1 {
		if first := c.first[s.Ino]; first != nil {
			if err := first.link(to, name); err != nil {
				return fmt.Errorf("%s: cannot create the hard link: %w", in.printable(name), err)
			}
			c.removeName(s.Ino, first)
			return nil
		}
		if err := c.addPending(s.Ino, &linked{in, name, int(s.Nlink) - 1}); err != nil {
			return err
		}
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		if err = c.subdir(from, in, name, &s); err != nil {
			return err // the error names a file in the directory
		}
	case unix.S_IFREG:
		err = c.file(from, to, name, &s)
	case unix.S_IFLNK:
		err = symlink(from, to, name, &s)
	default: // pipes, sockets, devices
		err = node(from, to, name, &s)
	}
	if err == nil { // last, because the operations before change the times
		err = unix.UtimesNanoAt(int(to.Fd()), name, []unix.Timespec{s.Atim, s.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		if errors.Is(err, c.ctx.Err()) {
			return err
		}
		return fmt.Errorf("%s: cannot copy: %w", in.printable(name), err)
	}
	return nil
}

// subdir copies a subdirectory.
func (c *copier) subdir(from *os.File, in *dirNode, name string, s *unix.Stat_t) error {
	source, err := openDir(int(from.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", in.printable(name), err)
	}
	defer source.Close()
	if err := unix.Mkdirat(int(in.to.Fd()), name, 0o700); err != nil {
		return fmt.Errorf("%s: cannot copy: %w", in.printable(name), err)
	}
	target, err := openDir(int(in.to.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: cannot open its copy: %w", in.printable(name), err)
	}
	defer target.Close()
	below := &dirNode{up: in, name: name, depth: in.depth + 1, to: target}
	err = c.dir(source, below)
	below.to = nil
	if err != nil {
		return err
	}
	// The directory gets its metadata after its entries were copied. Otherwise the entries would
	// inherit its default ACL and its group.
	if err := setMetadata(source, target, s); err != nil {
		return fmt.Errorf("%s: cannot copy: %w", in.printable(name), err)
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
	return setMetadata(source, target, s)
}

// data copies the data of a file without its holes.
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

// copyPiece copies a range and starts its writeback. If the range is a complete piece, it waits
// until the writeback has ended.
func copyPiece(source, target int, at, length int64) error {
	read, write := at, at
	step := func(left int) (int, error) { return unix.CopyFileRange(source, &read, target, &write, left, 0) }
	for left := length; left > 0; {
		n, err := step(int(left))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EXDEV) { // copy_file_range of ext4 works only within a file system
			if _, err := unix.Seek(target, read, unix.SEEK_SET); err != nil {
				return err
			}
			step = func(left int) (int, error) { return unix.Sendfile(target, source, &read, left) }
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
	// Free the pages for other data. No error matters: the kernel can ignore the advice.
	_ = unix.Fadvise(source, at, length, unix.FADV_DONTNEED)
	_ = unix.Fadvise(target, at, length, unix.FADV_DONTNEED)
	return nil
}

// addPending stores a file, and the directories above it, until its last name is found.
func (c *copier) addPending(inode uint64, e *linked) error {
	c.first[inode] = e
	c.pending++
	for s := e.in; s != nil; s = s.up {
		if s.pending++; s.pending > 1 {
			break // the directories above are counted already
		}
		c.pending++
	}
	if c.pending > c.limit {
		return fmt.Errorf("%s: cannot copy: files with more hard links to come, and their directories, "+
			"exceed %d; remove hard links, or place the links of a file near each other", e.in.printable(e.name), c.limit)
	}
	return nil
}

// removeName counts a name of a pending file that was found. After the last name it removes the
// file, and the directories above it that have no other pending file.
func (c *copier) removeName(inode uint64, e *linked) {
	if e.left--; e.left > 0 {
		return
	}
	delete(c.first, inode)
	c.pending--
	for s := e.in; s != nil; s = s.up {
		if s.pending--; s.pending > 0 {
			break // this directory and those above it have other pending files
		}
		c.pending--
	}
}

// link adds a name for the file. The path of the first name starts at the nearest directory that is
// still open: the directory of the file itself if both names are in the same directory. The rest of
// the path is in the copy, where no other process creates names. link opens it in as few calls as
// possible: with a call per directory, a pod could make each hard link as expensive as the maximum
// depth.
func (e *linked) link(to *os.File, name string) error {
	var names []string
	near := e.in
	for ; near.to == nil; near = near.up {
		names = append(names, near.name)
	}
	slices.Reverse(names)
	parent := near.to
	for len(names) > 0 {
		n := 1
		for size := len(names[0]); n < len(names) && size+1+len(names[n]) < unix.PathMax; n++ {
			size += 1 + len(names[n])
		}
		next, err := openBeneath(int(parent.Fd()), strings.Join(names[:n], "/"))
		if parent != near.to {
			parent.Close()
		}
		if err != nil {
			return err
		}
		parent, names = next, names[n:]
	}
	if parent != near.to {
		defer parent.Close()
	}
	return unix.Linkat(int(parent.Fd()), e.name, int(to.Fd()), name, 0)
}

// openBeneath opens a directory by its path below an open directory, with O_PATH. It follows no
// symbolic link and does not leave the file system.
func openBeneath(parent int, way string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	return retryOpen(way, func() (int, error) { return unix.Openat2(parent, way, &how) })
}

// symlink copies a symbolic link with its owner. It copies no mode and no attributes: a symbolic
// link has no mode, and a pod cannot set attributes of it.
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

// node copies a pipe, a socket or a device node: the entry with its type and device number, not the
// data behind it.
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
	return setMetadata(source, target, s)
}

// setMetadata sets the owner, the mode and the extended attributes of a copy that is not a symbolic
// link, in this order. A change of the owner clears mode bits and capabilities, and a change of the
// mode changes an ACL, so each of them must come before what it changes.
func setMetadata(source, target *os.File, s *unix.Stat_t) error {
	place := procPath(target)
	if err := unix.Fchownat(int(target.Fd()), "", int(s.Uid), int(s.Gid), unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("its owner: %w", err)
	}
	if err := unix.Chmod(place, s.Mode&0o7777); err != nil {
		return fmt.Errorf("its mode: %w", err)
	}
	names, err := listAttributes(procPath(source))
	if err != nil {
		return fmt.Errorf("its attributes: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, systemPrefix) {
			continue
		}
		value, err := getAttribute(procPath(source), name)
		if err == nil {
			err = unix.Setxattr(place, name, value, 0)
		}
		if err != nil {
			return fmt.Errorf("its attribute %q: %w", name, err)
		}
	}
	return nil
}

// procPath returns a path to an open file, even to a file that was opened with O_PATH.
func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// listAttributes returns the names of a file's extended attributes.
func listAttributes(place string) ([]string, error) {
	buffer, err := fillBuffer(func(b []byte) (int, error) { return unix.Listxattr(place, b) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return strings.FieldsFunc(string(buffer), func(r rune) bool { return r == 0 }), err
}

func getAttribute(place, name string) ([]byte, error) {
	return fillBuffer(func(b []byte) (int, error) { return unix.Getxattr(place, name, b) })
}

// fillBuffer calls fill with a buffer of 4 KiB, and again with 64 KiB if this is too small.
func fillBuffer(fill func([]byte) (int, error)) ([]byte, error) {
	buffer := make([]byte, 4<<10)
	n, err := fill(buffer)
	if errors.Is(err, unix.ERANGE) {
		// the kernel's limit (include/uapi/linux/limits.h, XATTR_LIST_MAX and XATTR_SIZE_MAX)
		buffer = make([]byte, 64<<10)
		n, err = fill(buffer)
	}
	if err != nil {
		return nil, err
	}
	return buffer[:n], nil
}

// printable returns the quoted path of an entry for messages. Of a long path it returns only the
// end. Names can contain any byte, and paths can be very long.
func (s *dirNode) printable(name ...string) string {
	way := path.Join(name...)
	for ; s.up != nil; s = s.up {
		if len(way) > minShown {
			way = path.Join("...", way)
			break
		}
		way = path.Join(s.name, way)
	}
	return strconv.Quote(way)
}
