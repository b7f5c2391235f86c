package safefile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Subtree is a part of the file system that the allow-list contains: a file, or a directory with
// its content.
type Subtree struct {
	Path string // absolute
	// Private is true for a tree that only callers with access to secrets may read. In any other
	// tree, a caller may read only the files whose mode permits all users to read them.
	Private bool
}

// AllowList decides which files a client may read. Open opens only these files.
//
// Open first rejects a path that, as written, is outside of all trees. The error does not show
// whether the file exists. The kernel then resolves the path, with all its links, without opening
// the file. Open compares the resolved path with the list, and opens exactly the resolved file if
// it is a regular file or a directory. So a link cannot lead out of the trees, even if another
// process changes the link meanwhile. Open does not follow the links in /proc to the open files of
// processes. It rejects pipes, sockets and devices, because to open one can block or have side
// effects.
//
// The caller chooses the trees. It also limits the time and the size of a read, because the kernel
// generates a file of /proc or /sys during the read.
type AllowList struct {
	Root  string // prefix of all paths: "/", or another directory in tests
	Trees []Subtree
	// Hidden contains the resolved paths of files and directories that no caller may read.
	// Everything below such a directory is hidden, too.
	Hidden []string
	// Secret matches the names of other files and directories that no caller may read. Everything
	// below such a directory is hidden, too.
	Secret *regexp.Regexp
}

// Errors of Open for a rejected path. For a missing file the error is fs.ErrNotExist.
var (
	ErrNotAllowed = errors.New("is not on the allow-list")
	ErrKind       = errors.New("is neither a file nor a directory")
)

// Open opens a file or a directory for reading. The caller closes the file. If all is true, the
// caller may also read private trees.
func (l *AllowList) Open(name string, all bool) (*os.File, error) {
	f, _, err := l.open(name, all)
	return f, err
}

// open does the work of Open. It also returns the resolved path.
func (l *AllowList) open(name string, all bool) (*os.File, string, error) {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return nil, "", fmt.Errorf("%q: %w: write it as an absolute path without . and ..", name, ErrNotAllowed)
	}
	// A path outside of the trees is not resolved, because it can lead to a network file system
	// that blocks.
	if !l.allowed(name, all, true) {
		return nil, "", fmt.Errorf("%s: %w", name, ErrNotAllowed)
	}
	root, err := unix.Open(l.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", l.Root, err)
	}
	defer unix.Close(root)
	// With O_PATH, the kernel resolves the path and does not open the file. So it calls no driver,
	// and does not wait for the other end of a pipe.
	found, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, "", fmt.Errorf("%s: is not there: %w", name, fs.ErrNotExist)
	case err != nil:
		return nil, "", fmt.Errorf("%s: %w: %w", name, ErrNotAllowed, err)
	}
	defer unix.Close(found)
	self := fmt.Sprintf("/proc/self/fd/%d", found)
	target, err := os.Readlink(self)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot resolve: %w", name, err)
	}
	target, below := strings.CutPrefix(target, strings.TrimSuffix(l.Root, "/"))
	target = cmp.Or(target, "/")
	// For a path outside the root directory of the process, the kernel returns "(unreachable)/x".
	below = below && path.IsAbs(target)
	var s unix.Stat_t
	if err := unix.Fstat(found, &s); err != nil {
		return nil, "", fmt.Errorf("%s: cannot examine: %w", name, err)
	}
	isDir := s.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case !below || !l.allowed(target, all, isDir) || !l.readable(target, s.Mode, all):
		return nil, "", fmt.Errorf("%s: %w", name, ErrNotAllowed)
	case !isDir && s.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, "", fmt.Errorf("%s: %w", name, ErrKind)
	}
	// The descriptor refers to the checked file, even if its name refers to another file by now.
	f, err := os.OpenFile(self, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", name, errors.Unwrap(err))
	}
	return f, target, nil
}

// allowed reports whether the list contains a path: the path is in a tree that the caller may read,
// or is a directory above such a tree, and Hidden and Secret do not exclude it. If all is true, the
// caller may also read private trees.
func (l *AllowList) allowed(resolved string, all, isDir bool) bool {
	if slices.ContainsFunc(l.Hidden, func(hidden string) bool { return within(resolved, hidden) }) {
		return false
	}
	if l.Secret != nil && slices.ContainsFunc(strings.Split(resolved, "/"), l.Secret.MatchString) {
		return false
	}
	return slices.ContainsFunc(l.Trees, func(t Subtree) bool {
		return (all || !t.Private) && (within(resolved, t.Path) || isDir && within(t.Path, resolved))
	})
}

// readable reports whether a caller may read an allowed file with this mode. The caller may read it
// if all users may, if it is in a private tree and all is true, if it is a link, or if it is a
// directory above a tree.
func (l *AllowList) readable(resolved string, mode uint32, all bool) bool {
	return mode&0o004 != 0 || mode&unix.S_IFMT == unix.S_IFLNK ||
		all && l.Private(resolved) ||
		mode&unix.S_IFMT == unix.S_IFDIR && slices.ContainsFunc(l.Trees, func(t Subtree) bool { return within(t.Path, resolved) && t.Path != resolved })
}

// The function within reports whether a path is the path tree itself, or is below it.
func within(name, tree string) bool {
	return name == tree || tree == "/" || strings.HasPrefix(name, tree+"/")
}

// Private reports whether a path is in a private tree.
func (l *AllowList) Private(name string) bool {
	return slices.ContainsFunc(l.Trees, func(t Subtree) bool { return t.Private && within(name, t.Path) })
}

// Entry is an entry of a directory.
type Entry struct {
	Name     string
	Mode     fs.FileMode
	Size     int64 // bytes, as the file system reports them
	Modified time.Time
	Target   string // target of a symbolic link
}

// Entries lists the allowed files in a directory, sorted by name. If there are more than limit, it
// returns the first of them, and more is true. If name is the path of a file, it lists only this
// file. If all is true, the caller may also read private trees.
func (l *AllowList) Entries(name string, all bool, limit int) (list []Entry, more bool, err error) {
	f, resolved, err := l.open(name, all)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, fmt.Errorf("%s: cannot examine: %w", name, err)
	}
	if !info.IsDir() {
		return []Entry{{Name: path.Base(resolved), Mode: info.Mode(), Size: info.Size(), Modified: info.ModTime()}}, false, nil
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, false, fmt.Errorf("%s: cannot list: %w", name, err)
	}
	slices.Sort(names)
	for _, child := range names {
		var s unix.Stat_t
		if unix.Fstatat(int(f.Fd()), child, &s, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // the file was removed meanwhile
		}
		kind := s.Mode & unix.S_IFMT
		inner := path.Join(resolved, child)
		// For a link, only its own path is checked here. Open checks the target.
		if !l.allowed(inner, all, kind == unix.S_IFDIR) || !l.readable(inner, s.Mode, all) {
			continue
		}
		if len(list) == limit {
			return list, true, nil
		}
		e := Entry{Name: child, Mode: mode(s.Mode), Size: s.Size, Modified: time.Unix(s.Mtim.Unix())}
		if kind == unix.S_IFLNK {
			target := make([]byte, unix.PathMax)
			if n, err := unix.Readlinkat(int(f.Fd()), child, target); err == nil {
				e.Target = string(target[:n])
			}
		}
		list = append(list, e)
	}
	return list, false, nil
}

// mode converts the mode of a file from the kernel's form to Go's form.
func mode(m uint32) fs.FileMode {
	out := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFDIR:
		out |= fs.ModeDir
	case unix.S_IFLNK:
		out |= fs.ModeSymlink
	case unix.S_IFIFO:
		out |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		out |= fs.ModeSocket
	case unix.S_IFBLK:
		out |= fs.ModeDevice
	case unix.S_IFCHR:
		out |= fs.ModeDevice | fs.ModeCharDevice
	}
	return out
}
