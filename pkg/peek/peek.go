// Package peek opens files of the machine for somebody who may look at some of them only.
//
// What may be looked at is a list of trees, and what is in none of them is refused. So is a path
// that as it is written begins in none of them, at once: whether it exists is not told. Any other
// is resolved by the kernel, with all its links, without anything being opened; then what it has
// led to is compared with the list, and that very thing is opened, if it is a plain file or a
// folder. So no link leads out of the trees, whoever may have made it and whenever it is changed;
// those of /proc that lead to what other processes have open are not followed at all. Nothing is
// opened that could wait or do something: no pipe, no socket, no device.
//
// The package decides nothing about which trees these are, and bounds neither the time nor the
// size: a file of /proc or /sys is made while it is read.
package peek

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

// Subtree is a part of the machine that may be looked at: a file, or a folder with all below it.
type Subtree struct {
	Path string // absolute
	// Private trees are for those who may see secrets. Of the others only what every program may
	// read is shown: what a file's mode keeps from them is nothing to look at.
	Private bool
}

// AllowList is what may be looked at.
type AllowList struct {
	Root  string // what the paths begin at; "/" but in tests
	Trees []Subtree
	// Hidden are parts of trees that are not shown to anybody: resolved paths, with all below them.
	Hidden []string
	// Secret matches names of files and folders that are not shown either.
	Secret *regexp.Regexp
}

// Why a path is refused; missing ones are fs.ErrNotExist.
var (
	ErrNotAllowed = errors.New("may not be looked at")
	ErrKind       = errors.New("is neither a file nor a folder")
)

// Open opens a file or a folder for reading. The caller closes it. all opens private trees, too.
func (l *AllowList) Open(name string, all bool) (*os.File, error) {
	f, _, err := l.open(name, all)
	return f, err
}

// open also returns the path that the name has led to.
func (l *AllowList) open(name string, all bool) (*os.File, string, error) {
	if !path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return nil, "", fmt.Errorf("%q: %w: write it as an absolute path without . and ..", name, ErrNotAllowed)
	}
	// To resolve a path may be to wait, where it leads into another machine's files.
	if !l.may(name, all, true) {
		return nil, "", fmt.Errorf("%s: %w", name, ErrNotAllowed)
	}
	root, err := unix.Open(l.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", l.Root, err)
	}
	defer unix.Close(root)
	// O_PATH opens nothing: no driver is asked, and nobody waits for the other end of a pipe.
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
	below = below && path.IsAbs(target) // "(unreachable)/x" is not
	var s unix.Stat_t
	if err := unix.Fstat(found, &s); err != nil {
		return nil, "", fmt.Errorf("%s: cannot examine: %w", name, err)
	}
	folder := s.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case !below || !l.may(target, all, folder) || !l.readable(target, s.Mode, all):
		return nil, "", fmt.Errorf("%s: %w", name, ErrNotAllowed)
	case !folder && s.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, "", fmt.Errorf("%s: %w", name, ErrKind)
	}
	// The descriptor stands for what was examined, whatever has the name by now.
	f, err := os.OpenFile(self, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "", fmt.Errorf("%s: cannot open: %w", name, errors.Unwrap(err))
	}
	return f, target, nil
}

// may tells whether a resolved path is in a tree or, for folders, above one.
func (l *AllowList) may(resolved string, all, folder bool) bool {
	if slices.ContainsFunc(l.Hidden, func(hidden string) bool { return within(resolved, hidden) }) {
		return false
	}
	if l.Secret != nil && slices.ContainsFunc(strings.Split(resolved, "/"), l.Secret.MatchString) {
		return false
	}
	return slices.ContainsFunc(l.Trees, func(t Subtree) bool {
		return (all || !t.Private) && (within(resolved, t.Path) || folder && within(t.Path, resolved))
	})
}

// readable tells whether the mode of a file lets everybody read it, or the caller may see what it
// does not.
func (l *AllowList) readable(resolved string, mode uint32, all bool) bool {
	return mode&0o004 != 0 || mode&unix.S_IFMT == unix.S_IFLNK ||
		all && l.Private(resolved) ||
		mode&unix.S_IFMT == unix.S_IFDIR && slices.ContainsFunc(l.Trees, func(t Subtree) bool { return within(t.Path, resolved) && t.Path != resolved })
}

func within(name, tree string) bool {
	return name == tree || tree == "/" || strings.HasPrefix(name, tree+"/")
}

// Private tells whether a path is for those only who may see secrets.
func (l *AllowList) Private(name string) bool {
	return slices.ContainsFunc(l.Trees, func(t Subtree) bool { return t.Private && within(name, t.Path) })
}

// Entry is one of a folder.
type Entry struct {
	Name     string
	Mode     fs.FileMode
	Size     int64 // bytes, as the file system says
	Modified time.Time
	Target   string // of a link
}

// Entries lists what may be looked at of a folder, by name, at most so many entries; more tells
// that there are others. Of a file it lists the file.
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
			continue // it has gone meanwhile
		}
		kind := s.Mode & unix.S_IFMT
		inner := path.Join(resolved, child)
		// A link is shown by its own name; whether it may be followed is seen when it is.
		if !l.may(inner, all, kind == unix.S_IFDIR) || !l.readable(inner, s.Mode, all) {
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

// mode is the kernel's mode as Go writes it.
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
