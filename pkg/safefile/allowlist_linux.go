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

// Subtree is an allowed part of the file system: a file, or a directory with its content.
type Subtree struct {
	Path string // absolute
	// Private trees are only for callers with access to secrets. In the other trees, only files
	// that are readable for every program are allowed.
	Private bool
}

// AllowList is the list of files that a client may read. Open opens files below its trees.
//
// A path outside of all allowed trees, as written, is rejected at once, without telling whether it
// exists. The kernel resolves any other path, with all its links, without opening the file. Then
// the package compares the resolved path with the list, and opens exactly this file if it is a
// regular file or a directory. So no link leads out of the trees, regardless of its creator and of
// the time of its change. Links of /proc to the open files of processes are not followed at all.
// The package never opens a pipe, a socket or a device, which could block or have side effects.
//
// The callers choose the trees, and limit the time and the size: a file of /proc or /sys is
// generated while it is read.
type AllowList struct {
	Root  string // prefix of all paths; "/" except in tests
	Trees []Subtree
	// Hidden are parts of trees that are allowed for no caller: resolved paths, with their content.
	Hidden []string
	// Secret matches names of files and directories that are also allowed for no caller.
	Secret *regexp.Regexp
}

// Errors for rejected paths. For missing files the error is fs.ErrNotExist.
var (
	ErrNotAllowed = errors.New("is not on the allow-list")
	ErrKind       = errors.New("is neither a file nor a directory")
)

// Open opens a file or a directory for reading. The caller closes it. all includes private trees.
func (l *AllowList) Open(name string, all bool) (*os.File, error) {
	f, _, err := l.open(name, all)
	return f, err
}

// open also returns the resolved path.
func (l *AllowList) open(name string, all bool) (*os.File, string, error) {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return nil, "", fmt.Errorf("%q: %w: write it as an absolute path without . and ..", name, ErrNotAllowed)
	}
	// The resolution of a path can block, if it leads to a network file system.
	if !l.allowed(name, all, true) {
		return nil, "", fmt.Errorf("%s: %w", name, ErrNotAllowed)
	}
	root, err := unix.Open(l.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", l.Root, err)
	}
	defer unix.Close(root)
	// O_PATH opens no file: it calls no driver, and does not wait for the other end of a pipe.
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
	below = below && path.IsAbs(target) // "(unreachable)/x" is not absolute
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
	// The descriptor refers to the checked file, even if the name now refers to another file.
	f, err := os.OpenFile(self, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", name, errors.Unwrap(err))
	}
	return f, target, nil
}

// allowed reports whether a resolved path is in a tree or, for directories, above a tree.
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

// readable reports whether the mode of a file allows reading by all users, or the caller may read
// it all the same.
func (l *AllowList) readable(resolved string, mode uint32, all bool) bool {
	return mode&0o004 != 0 || mode&unix.S_IFMT == unix.S_IFLNK ||
		all && l.Private(resolved) ||
		mode&unix.S_IFMT == unix.S_IFDIR && slices.ContainsFunc(l.Trees, func(t Subtree) bool { return within(t.Path, resolved) && t.Path != resolved })
}

func within(name, tree string) bool {
	return name == tree || tree == "/" || strings.HasPrefix(name, tree+"/")
}

// Private reports whether a path is only for callers with access to secrets.
func (l *AllowList) Private(name string) bool {
	return slices.ContainsFunc(l.Trees, func(t Subtree) bool { return t.Private && within(name, t.Path) })
}

// Entry is an entry of a directory.
type Entry struct {
	Name     string
	Mode     fs.FileMode
	Size     int64 // bytes, from the file system
	Modified time.Time
	Target   string // of a link
}

// Entries lists the allowed content of a directory, by name, at most `most` entries; more reports
// whether there are others. For a file it lists the file.
func (l *AllowList) Entries(name string, all bool, most int) (list []Entry, more bool, err error) {
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
			continue // deleted meanwhile
		}
		kind := s.Mode & unix.S_IFMT
		inner := path.Join(resolved, child)
		// A link is checked by its own name; its target is checked by Open.
		if !l.allowed(inner, all, kind == unix.S_IFDIR) || !l.readable(inner, s.Mode, all) {
			continue
		}
		if len(list) == most {
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

// mode converts a mode of the kernel to Go's form.
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
