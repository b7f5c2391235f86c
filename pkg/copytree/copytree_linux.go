// Package copytree copies a folder with all that is in it as it lies on the disk: the data and the
// holes of files, owners, modes, times, extended attributes and with them ACLs and capabilities,
// hard links within the folder, symbolic links as they are, and named pipes, sockets and device
// nodes as such. What a restart of the machine would have left in the folder is in the copy. Not
// kept are attributes that chattr(1) sets, the time of change (ctime), space that is set aside and
// not written, and what the system itself has noted about the original (extended attributes
// trusted.orlop.*).
//
// The data are shared where the file system can do that (FICLONE), and copied within the kernel
// otherwise (copy_file_range(2)), in pieces each of which is on its way to the disk before the next
// begins: a copy of a terabyte leaves no terabyte of pages behind that are to be written. Nothing
// makes the copy durable; that, and that nobody writes to either folder meanwhile, is the caller's.
//
// Both folders may be hostile: no symbolic link is followed, and in the folder that is copied no
// path that is longer than one name. Libraries (containerd's continuity/fs, otiai10/copy) follow
// paths, fill holes or cannot be stopped halfway.
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
	// piece is how many bytes are copied before they are written to the disk: what others wait for
	// on a slow disk, at most.
	piece = 4 << 20
	// deepest is how many folders may lie within each other. Each that is open takes two of the
	// process's descriptors.
	deepest = 512
	// batch is how many names of a folder are read at a time. Each folder that is open has as many
	// in memory.
	batch = 64
	// mostKept is how many names of files and folders are kept for hard links that are still to
	// come: 80 MiB, if all are as long as they can be.
	mostKept = 1 << 18
	// own begins the names of attributes by which the system notes something about a folder, and
	// not about its copies.
	own = "trusted.orlop."
	// shown is how many bytes of a way are told at least, of its end: a whole one can have 128 KiB.
	shown = 128
)

// Copy makes to, an empty folder, a copy of the folder from; both lie on one file system. It stops
// when ctx is done. After an error to has a part of what it should have. The error names the file,
// relative to from. A folder that has too many hard links is refused, see mostKept.
func Copy(ctx context.Context, from, to string) error {
	return newCopier(ctx).tree(from, to)
}

// tree copies from to to.
func (c *copier) tree(from, to string) error {
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
	if err := c.folder(source, &step{to: target}); err != nil {
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

// Idle makes the thread that calls it wait for all others, for the processor and, where the disk's
// scheduler knows priorities, for the disk. It is for a thread that has nothing else to do
// afterwards.
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
	share bool                // the file system may know FICLONE
	first map[uint64]*earlier // by inode: files with names that are still to come
	kept  int                 // how many they are, and the folders on the way to them
	most  int                 // kept may be
}

func newCopier(ctx context.Context) *copier {
	return &copier{ctx: ctx, share: true, first: map[uint64]*earlier{}, most: mostKept}
}

// step is a folder on the way to a file. All that is in it shares it, and it shares the steps
// above: the way of each file by itself would be as much memory as there are files, times how deep
// they lie.
type step struct {
	up    *step // nil: the root
	name  string
	depth int
	kept  int      // files and folders in it that are remembered
	to    *os.File // its copy, while it goes on; nil: that is whole
}

// earlier is a file with several names that was copied under one of them.
type earlier struct {
	in   *step
	name string
	left int // names that are still to come
}

// folder opens one, by its last name only.
func folder(parent int, name string) (*os.File, error) { return open(parent, name, unix.O_DIRECTORY) }

// open opens a file, never by a symbolic link and without waiting for the other end of a pipe.
func open(parent int, name string, flags int) (*os.File, error) {
	return opened(name, func() (int, error) {
		return unix.Openat(parent, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	})
}

// opened is a file as call opens it, again when a signal came between.
func opened(name string, call func() (fd int, err error)) (*os.File, error) {
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

// folder copies what is in a folder.
func (c *copier) folder(source *os.File, in *step) error {
	if in.depth > deepest {
		return fmt.Errorf("%s: it lies in more than %d folders: it cannot be copied; have it less deep", in.printable(), deepest)
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

// entry copies one file of whatever kind.
func (c *copier) entry(from *os.File, in *step, name string) error {
	to := in.to
	var s unix.Stat_t
	if err := unix.Fstatat(int(from.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: %w", in.printable(name), err)
	}
	kind := s.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && s.Nlink > 1 {
		if first := c.first[s.Ino]; first != nil {
			if err := first.link(to, name); err != nil {
				return fmt.Errorf("%s: cannot be linked: %w", in.printable(name), err)
			}
			c.linked(s.Ino, first)
			return nil
		}
		if err := c.keep(s.Ino, &earlier{in, name, int(s.Nlink) - 1}); err != nil {
			return err
		}
	}
	var err error
	switch kind {
	case unix.S_IFDIR:
		if err = c.subfolder(from, in, name, &s); err != nil {
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
		return fmt.Errorf("%s: cannot be copied: %w", in.printable(name), err)
	}
	return nil
}

// subfolder copies a folder.
func (c *copier) subfolder(from *os.File, in *step, name string, s *unix.Stat_t) error {
	source, err := folder(int(from.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: cannot be opened: %w", in.printable(name), err)
	}
	defer source.Close()
	if err := unix.Mkdirat(int(in.to.Fd()), name, 0o700); err != nil {
		return fmt.Errorf("%s: cannot be copied: %w", in.printable(name), err)
	}
	target, err := folder(int(in.to.Fd()), name)
	if err != nil {
		return fmt.Errorf("%s: its copy cannot be opened: %w", in.printable(name), err)
	}
	defer target.Close()
	below := &step{up: in, name: name, depth: in.depth + 1, to: target}
	err = c.folder(source, below)
	below.to = nil
	if err != nil {
		return err
	}
	// after all else: what is made in it would take its default ACL and its group
	if err := dress(source, target, s); err != nil {
		return fmt.Errorf("%s: cannot be copied: %w", in.printable(name), err)
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

// keep remembers a file until its last name has come, and with it the folders on the way to it.
func (c *copier) keep(inode uint64, e *earlier) error {
	c.first[inode] = e
	c.kept++
	for s := e.in; s != nil; s = s.up {
		if s.kept++; s.kept > 1 {
			break // and so are those above it
		}
		c.kept++
	}
	if c.kept > c.most {
		return fmt.Errorf("%s: it cannot be copied: files whose other hard links are still to come, and the folders they lie in, "+
			"are more than %d by now: remove hard links, or have those of a file near each other", e.in.printable(e.name), c.most)
	}
	return nil
}

// linked forgets a file when its last name has come.
func (c *copier) linked(inode uint64, e *earlier) {
	if e.left--; e.left > 0 {
		return
	}
	delete(c.first, inode)
	c.kept--
	for s := e.in; s != nil; s = s.up {
		if s.kept--; s.kept > 0 {
			break // it is needed still, and so are those above it
		}
		c.kept--
	}
}

// link gives the file one more name. The way to it begins at the nearest folder that is open, which
// is its own if both names are in one. The rest is in the copy, where nobody else makes names, and
// is gone in as few calls as it can be: name by name, a pod could have each of its links take as
// many calls as folders may lie within each other.
func (e *earlier) link(to *os.File, name string) error {
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
		next, err := beneath(int(parent.Fd()), strings.Join(names[:n], "/"))
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

// beneath opens a folder some steps below another one as a place, by no symbolic link, and on the
// same file system.
func beneath(parent int, way string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	return opened(way, func() (int, error) { return unix.Openat2(parent, way, &how) })
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

// node copies a pipe, a socket or a device node: the name and what it stands for, and nothing
// behind it.
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

// dress gives a copy that is not a symbolic link the owner, the mode and the attributes of what it
// was made of, in this order: a new owner takes bits of the mode and capabilities away, a new mode
// changes an ACL.
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
		if strings.HasPrefix(name, own) {
			continue
		}
		value, err := get(behind(source), name)
		if err == nil {
			err = unix.Setxattr(place, name, value, 0)
		}
		if err != nil {
			return fmt.Errorf("its attribute %q: %w", name, err)
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
		// the kernel's limit (include/uapi/linux/limits.h, XATTR_LIST_MAX and XATTR_SIZE_MAX)
		buffer = make([]byte, 64<<10)
		n, err = fill(buffer)
	}
	if err != nil {
		return nil, err
	}
	return buffer[:n], nil
}

// printable is a way for people, or the end of one that is long: names may have anything in them,
// and a way may be longer than anybody reads.
func (s *step) printable(name ...string) string {
	way := path.Join(name...)
	for ; s.up != nil; s = s.up {
		if len(way) > shown {
			way = path.Join("...", way)
			break
		}
		way = path.Join(s.name, way)
	}
	return strconv.Quote(way)
}
