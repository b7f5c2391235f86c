package extensions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// OwnFiles are the files of the system below a directory, without the files of extensions that are
// mounted there.
type OwnFiles struct {
	dir  string
	root *os.Root
	err  error
}

// NewOwnFiles opens a directory. It must be called before extensions are mounted there.
func NewOwnFiles(dir string) OwnFiles {
	root, err := os.OpenRoot(dir)
	return OwnFiles{dir, root, err}
}

// Has reports whether an extension must not have a file at a path (System.Has): the system has a
// file there, the path is not below the directory, or the file system cannot answer.
func (o OwnFiles) Has(name string) bool {
	below, ok := strings.CutPrefix(name, o.dir+"/")
	if !ok || o.err != nil {
		return true
	}
	_, err := o.root.Lstat(below)
	return !errors.Is(err, fs.ErrNotExist)
}

// MakeStates makes the directories on DATA that services of active extensions request. A problem
// with a directory is reported, and the others are made. The call can be repeated.
func (m *Manager) MakeStates() {
	for _, e := range m.Active() {
		for _, s := range e.Services {
			if !s.State {
				continue
			}
			if err := makeState(s.StateDir(), int(s.User)); err != nil {
				m.deps.Console(fmt.Sprintf("extension %s: cannot create the directory of %s: %v", e.Name, s.Name, err))
			}
		}
	}
}

// makeState makes a directory on DATA for a user.
func makeState(dir string, user int) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Lchown(dir, user, user)
}
