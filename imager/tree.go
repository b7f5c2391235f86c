package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Node is a file of a root file system. If Dir, Target or Source is set, it is a directory, a
// symbolic link, or a copy of a local file. Otherwise it is a file with the content Data. The user
// root owns all files.
type Node struct {
	Mode   fs.FileMode // permission bits
	Dir    bool
	Target string // of a symbolic link
	Source string // file on this computer
	Data   []byte // content; nil for an empty file
	// From is the origin of the file: a Debian package, a program, "kernel modules" or others. The
	// manifest has the total size for each origin.
	From string
}

// Tree is the plan of a root file system. It maps clean absolute paths to nodes. It does not
// contain the directory "/".
type Tree map[string]Node

// Add adds a node and its parent directories. It fails if another node has the path, or if a parent
// is not a directory. A directory can be added again.
func (t Tree) Add(name string, n Node) error {
	if old, ok := t[name]; ok && !(old.Dir && n.Dir) {
		return fmt.Errorf("%s: comes from %s and from %s", name, old.From, n.From)
	}
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if above, ok := t[dir]; ok && !above.Dir {
			return fmt.Errorf("%s: %s above it is not a directory", name, dir)
		} else if !ok {
			t[dir] = Node{Dir: true, Mode: 0o755, From: n.From}
		}
	}
	t[name] = n
	return nil
}

// Names returns the sorted paths.
func (t Tree) Names() []string { return slices.Sorted(maps.Keys(t)) }

// Read returns the content of a file.
func (n Node) Read() ([]byte, error) {
	if n.Source != "" {
		return os.ReadFile(n.Source)
	}
	return n.Data, nil
}

// open returns the content of a file as a stream.
func (n Node) open() (io.ReadCloser, error) {
	if n.Source != "" {
		return os.Open(n.Source)
	}
	return io.NopCloser(bytes.NewReader(n.Data)), nil
}

// Write empties the directory dir and writes the tree to it. The modes do not depend on the umask.
// Times and owners are set later, by the program that makes the file system.
func (t Tree) Write(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	// In sorted order, each directory precedes its content. The mode of a directory has to permit
	// writing by its owner, because the content is written after the mode is set.
	for _, name := range t.Names() {
		if err := t[name].write(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: cannot write: %w", name, err)
		}
	}
	return nil
}

func (n Node) write(dst string) error {
	switch {
	case n.Dir:
		if err := os.Mkdir(dst, 0o755); err != nil {
			return err
		}
	case n.Target != "":
		return os.Symlink(n.Target, dst)
	default:
		r, err := n.open()
		if err != nil {
			return err
		}
		defer r.Close()
		f, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err := io.Copy(f, r); err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return os.Chmod(dst, n.Mode)
}

// Executables returns the sorted paths of executable files. A symbolic link to an executable file
// has the form "path -> target".
func (t Tree) Executables() []string {
	var all []string
	for _, name := range t.Names() {
		n := t[name]
		switch {
		case n.Target != "":
			to := n.Target
			if !path.IsAbs(to) {
				to = path.Join(path.Dir(name), to)
			}
			if x, ok := t[to]; ok && x.executable() {
				all = append(all, name+" -> "+n.Target)
			}
		case n.executable():
			all = append(all, name)
		}
	}
	return all
}

func (n Node) executable() bool { return !n.Dir && n.Target == "" && n.Mode&0o111 != 0 }

// interpreters are the names of programs that run scripts, without a version number at the end.
var interpreters = []string{
	"sh", "ash", "bash", "dash", "ksh", "mksh", "zsh", "fish", "tcsh", "csh", "busybox", "toybox", "rbash",
	"python", "perl", "ruby", "lua", "luajit", "tclsh", "awk", "gawk", "mawk", "sed", "node", "php", "guile", "gdb", "env", "vi", "vim", "ed", "m4",
}

// CheckNoInterpreter fails if a file below root has the name of an interpreter, is a script, or is
// executable but not ELF. root is the directory that Write has written.
func CheckNoInterpreter(root string) error {
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		shown := strings.TrimPrefix(name, root)
		plain := strings.TrimRight(d.Name(), "0123456789.-")
		if slices.Contains(interpreters, plain) {
			return fmt.Errorf("%s: is named like an interpreter; nothing in the root may run scripts", shown)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		head := make([]byte, 4)
		if _, err := io.ReadFull(f, head); err != nil {
			head = nil // a file with fewer than four bytes has no magic number
		}
		switch {
		case bytes.HasPrefix(head, []byte("#!")):
			return fmt.Errorf("%s: is a script; nothing in the root may be one", shown)
		case info.Mode()&0o111 != 0 && string(head) != "\x7fELF":
			return fmt.Errorf("%s: is executable but not an ELF file", shown)
		}
		return nil
	})
}
