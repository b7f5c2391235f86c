package credentials

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Read reads the actual state of the paths in want.
func Read(want Want) (Have, error) {
	have := Have{Dirs: map[string]Owner{}, Files: map[string]Found{}, Now: time.Now()}
	for _, f := range want.Dirs {
		// Stat follows links: a part of DATA can be a symbolic link to a volume
		if info, err := os.Stat(f.Path); err == nil && info.IsDir() {
			have.Dirs[f.Path] = ownerOf(info)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Have{}, fmt.Errorf("credentials: cannot read directory: %w", err)
		}
	}
	for _, pattern := range want.Strays {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return Have{}, fmt.Errorf("credentials: cannot list %s: %w", pattern, err)
		}
		have.Strays = append(have.Strays, found...)
	}
	names := make([]string, 0, len(want.Files)+2*len(want.Leaves))
	for _, f := range want.Files {
		names = append(names, f.Path)
	}
	for _, l := range want.Leaves {
		names = append(names, l.Cert, l.Key)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Have{}, fmt.Errorf("credentials: cannot read: %w", err)
		}
		info, err := os.Lstat(name)
		if err != nil {
			return Have{}, fmt.Errorf("credentials: cannot read: %w", err)
		}
		have.Files[name] = Found{ownerOf(info), content}
	}
	return have, nil
}

func ownerOf(info fs.FileInfo) Owner {
	o := Owner{Mode: info.Mode()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID = s.Uid
	}
	return o
}
