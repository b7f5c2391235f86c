package kerneltest

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive writes a cpio archive in the kernel's format "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst). The archive is not compressed: the
// host reads it from its page cache, but the emulated CPU would have to decompress it.
type archive struct {
	file  *os.File
	w     *bufio.Writer
	size  int64
	inode int
	have  map[string]bool
}

func newArchive(path string) (*archive, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("initramfs: cannot create: %w", err)
	}
	return &archive{file: file, w: bufio.NewWriterSize(file, 1<<20), have: map[string]bool{"": true}}, nil
}

// Types of files in st_mode (stat(2)).
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
	typeChar = 0o020000
)

// entry writes an entry and, before it, its missing parent directories. If the archive already has
// the name, entry does nothing.
func (a *archive) entry(name string, mode uint32, major, minor int, size int64, content io.Reader) error {
	name = strings.Trim(filepath.Clean(name), "/")
	if a.have[name] {
		return nil
	}
	if dir := filepath.Dir(name); dir != "." {
		if err := a.dir(dir); err != nil {
			return err
		}
	}
	a.have[name] = true
	a.inode++
	return a.record(name, mode, major, minor, size, content)
}

func (a *archive) record(name string, mode uint32, major, minor int, size int64, content io.Reader) error {
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, major, minor, len(name)+1, 0, name)
	if err := a.bytes(strings.NewReader(head), int64(len(head))); err != nil {
		return fmt.Errorf("initramfs: cannot write %s: %w", name, err)
	}
	if content == nil {
		return nil
	}
	if err := a.bytes(content, size); err != nil {
		return fmt.Errorf("initramfs: cannot write %s: %w", name, err)
	}
	return nil
}

// bytes writes size bytes of from, and pads the archive to a multiple of four bytes.
func (a *archive) bytes(from io.Reader, size int64) error {
	if _, err := io.CopyN(a.w, from, size); err != nil {
		return err
	}
	a.size += size
	padding := -a.size & 3
	a.size += padding
	_, err := a.w.Write(make([]byte, padding))
	return err
}

func (a *archive) dir(name string) error {
	return a.entry(name, typeDir|0o755, 0, 0, 0, nil)
}

func (a *archive) link(name, target string) error {
	return a.entry(name, typeLink|0o777, 0, 0, int64(len(target)), strings.NewReader(target))
}

func (a *archive) data(name string, content []byte) error {
	return a.entry(name, typeFile|0o644, 0, 0, int64(len(content)), strings.NewReader(string(content)))
}

// copyFile adds a file of the host, with its permissions.
func (a *archive) copyFile(name, from string) error {
	file, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return a.entry(name, typeFile|uint32(info.Mode().Perm()), 0, 0, info.Size(), file)
}

// copyTree adds a file or a directory of the host with its whole content.
func (a *archive) copyTree(name, from string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		to := filepath.Join(name, below)
		switch {
		case d.IsDir():
			return a.dir(to)
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return a.link(to, target)
		case d.Type().IsRegular():
			return a.copyFile(to, path)
		}
		return nil // sockets and devices of the host are not copied
	})
}

// libraryDirs are the directories in which Debian's dynamic loader finds libraries.
var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"}

// tool adds an executable of the host with its loader and shared libraries.
func (a *archive) tool(path string) error {
	if err := a.copyFile(path, path); err != nil {
		return err
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("initramfs: %s is no ELF file: %w", path, err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return fmt.Errorf("initramfs: %s: %w", path, err)
		}
		loader := strings.TrimRight(string(name), "\x00")
		// The name of the loader begins with /lib64, which is a link to /usr/lib64 on the host and
		// in the guest. So the archive has the loader below /usr.
		if err := a.copyFile("/usr"+strings.TrimPrefix(loader, "/usr"), loader); err != nil {
			return err
		}
	}
	needed, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("initramfs: %s: %w", path, err)
	}
	for _, name := range needed {
		i := slices.IndexFunc(libraryDirs, func(dir string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		})
		if i < 0 {
			return fmt.Errorf("initramfs: %s needs %s, which is not in %v", path, name, libraryDirs)
		}
		library := filepath.Join(libraryDirs[i], name)
		if a.have[strings.Trim(library, "/")] {
			continue
		}
		if err := a.tool(library); err != nil {
			return err
		}
	}
	return nil
}

// skeleton adds the directories, links and files that every guest has.
func (a *archive) skeleton() error {
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "root", "tmp", "run", "proc", "sys", "dev", "etc", "var", "mnt"} {
		if err := a.dir(dir); err != nil {
			return err
		}
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := a.link(l, "usr/"+l); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/\n",
		"etc/group":  "root:x:0:\n",
		"etc/hosts":  "127.0.0.1 localhost\n",
	} {
		if err := a.data(name, []byte(content)); err != nil {
			return err
		}
	}
	// The kernel opens /dev/console for init before init mounts a file system.
	return a.entry("dev/console", typeChar|0o600, 5, 1, 0, nil)
}

func (a *archive) close() error {
	a.inode = 0
	err := a.record("TRAILER!!!", 0, 0, 0, 0, nil)
	return errors.Join(err, a.w.Flush(), a.file.Close())
}
