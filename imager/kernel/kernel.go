// Package kernel unpacks a Debian kernel package: the kernel itself, and all modules, decompressed
// and with the indexes of depmod. Select then returns the modules of an image and their
// dependencies.
//
// The profile of a product selects the modules, and init and machined load them.
package kernel

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/imager/debian"
)

// Kernel is an unpacked kernel package.
type Kernel struct {
	Release string // as in uname -r
	Image   string // file with the bzImage
	// base is a directory with lib/modules/<Release>, all modules decompressed.
	base string
	// deps maps the file of each module to the files of its dependencies, in the order of
	// modules.dep. The paths are relative to lib/modules/<Release>.
	deps map[string][]string
	// files maps the name of each module to its file.
	files map[string]string
	// builtin contains the names of modules that are part of the kernel.
	builtin map[string]bool
}

// Unpack returns the kernel of a package. It unpacks the package only once, into a directory of
// cache with the SHA-256 of the package as its name.
func Unpack(deb, sha256, cache string) (*Kernel, error) {
	dir := filepath.Join(cache, sha256)
	err := debian.FillOnce(dir, func(dir string) error {
		if err := unpack(deb, dir); err != nil {
			return fmt.Errorf("%s: cannot unpack kernel: %w", deb, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return open(dir)
}

// unpack writes vmlinuz and lib/modules/<release>/ to dir, decompresses the modules to .ko files,
// and runs depmod.
func unpack(deb, dir string) error {
	release, compressed := "", []string{}
	err := debian.Walk(deb, func(name string, h *tar.Header, content io.Reader) error {
		if h.Typeflag != tar.TypeReg {
			return nil
		}
		if rel, ok := strings.CutPrefix(name, "/boot/vmlinuz-"); ok {
			release = rel
			return write(filepath.Join(dir, "vmlinuz"), content)
		}
		name, ok := strings.CutPrefix(name, "/usr") // depmod reads lib/modules
		if !ok || !strings.HasPrefix(name, "/lib/modules/") {
			return nil
		}
		if strings.HasSuffix(name, ".xz") {
			compressed = append(compressed, filepath.Join(dir, name))
		}
		return write(filepath.Join(dir, name), content)
	})
	if err != nil {
		return err
	}
	if release == "" {
		return fmt.Errorf("no /boot/vmlinuz-* in it")
	}
	if err := decompress(compressed); err != nil {
		return err
	}
	return depmod(dir, release)
}

// decompress replaces modules by decompressed modules, which load faster. There are thousands of
// modules, so a single xz process decompresses all of them.
func decompress(files []string) error {
	if len(files) == 0 {
		return nil // without names, xz would read its standard input
	}
	command := exec.Command("xz", "--decompress", "--files0")
	command.Stdin = strings.NewReader(strings.Join(files, "\x00") + "\x00")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("xz: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func write(path string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, content); err != nil {
		f.Close()
		return fmt.Errorf("%s: cannot write: %w", path, err)
	}
	return f.Close()
}

// depmod makes the indexes of base/lib/modules/release.
func depmod(base, release string) error {
	out, err := exec.Command("depmod", "-b", base, release).CombinedOutput()
	if err != nil {
		return fmt.Errorf("depmod: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// open reads the indexes of an unpacked kernel.
func open(dir string) (*Kernel, error) {
	releases, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil || len(releases) != 1 {
		return nil, fmt.Errorf("%s: %d kernel releases in it, one expected; delete the directory", dir, len(releases))
	}
	k := &Kernel{
		Release: filepath.Base(releases[0]), Image: filepath.Join(dir, "vmlinuz"), base: dir,
		deps: map[string][]string{}, files: map[string]string{}, builtin: map[string]bool{},
	}
	dep, err := os.ReadFile(filepath.Join(releases[0], "modules.dep"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(dep)) {
		file, needs, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("%s/modules.dep: line without a colon: %q", releases[0], line)
		}
		k.deps[file] = strings.Fields(needs)
		k.files[moduleName(file)] = file
	}
	builtin, err := os.ReadFile(filepath.Join(releases[0], "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(string(builtin)) {
		k.builtin[moduleName(file)] = true
	}
	return k, nil
}

// moduleName returns the kernel's name of the module in a file: the file name without directory and
// suffix, with _ in place of -.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
