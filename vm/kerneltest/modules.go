package kerneltest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ulikunitz/xz"
)

// kernel is a kernel image and its modules.
type kernel struct {
	image   string
	files   map[string]string // module name → file
	builtin map[string]bool
}

// openKernel finds the kernel in dir, in the layout of the imager (vmlinuz, modules/RELEASE) or of
// an unpacked Debian package (boot/vmlinuz-RELEASE, lib/modules/RELEASE). It reads no depmod index,
// because each module file contains the names of its dependencies.
func openKernel(dir string) (*kernel, error) {
	find := func(what string, patterns ...string) (string, error) {
		for _, p := range patterns {
			found, err := filepath.Glob(filepath.Join(dir, p))
			if err != nil {
				return "", err
			}
			if len(found) == 1 {
				return found[0], nil
			}
			if len(found) > 1 {
				return "", fmt.Errorf("kernel %s: has more than one %s: %v", dir, what, found)
			}
		}
		return "", fmt.Errorf("kernel %s: has no %s (looked for %v); `make image` makes one", dir, what, patterns)
	}
	image, err := find("kernel image", "vmlinuz", "boot/vmlinuz-*")
	if err != nil {
		return nil, err
	}
	modules, err := find("directory of modules", "modules/*", "lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return nil, err
	}
	k := &kernel{image: image, files: map[string]string{}, builtin: map[string]bool{}}
	err = filepath.WalkDir(modules, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if name := moduleName(path); name != "" {
				k.files[name] = path
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel %s: cannot list the modules: %w", dir, err)
	}
	builtin, err := os.ReadFile(filepath.Join(modules, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("kernel %s: %w", dir, err)
	}
	for line := range strings.Lines(string(builtin)) {
		k.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return k, nil
}

// moduleName returns the name by which the kernel knows the module in a file; empty if the file is
// no module.
func moduleName(path string) string {
	name, _, found := strings.Cut(filepath.Base(path), ".ko")
	if !found {
		return ""
	}
	return strings.ReplaceAll(name, "-", "_")
}

// module is a module that is ready to be loaded.
type module struct {
	name       string
	data       []byte
	parameters string
}

// closure returns the modules of the list and all their dependencies, in the order of loading. An
// entry of the list is "NAME[?] [PARAMETER=VALUE]...". The "?" makes a module optional, for lists
// that fit several kernels. closure fails if a module without "?" is missing.
func (k *kernel) closure(list []string) ([]module, error) {
	var (
		names = slices.Clone(list)
		order []module
		done  = map[string]bool{}
		param = map[string]string{}
		visit func(name, by string, optional bool) error
	)
	visit = func(name, by string, optional bool) error {
		name = strings.ReplaceAll(name, "-", "_")
		if done[name] || k.builtin[name] {
			return nil
		}
		done[name] = true
		path, ok := k.files[name]
		if !ok && optional {
			return nil
		}
		if !ok {
			return fmt.Errorf("module %s (%s): is neither a file nor part of the kernel", name, by)
		}
		data, err := readModule(path)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		hard, soft, err := needs(data)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range soft {
			if err := visit(n, "wished for by "+name, true); err != nil {
				return err
			}
		}
		for _, n := range hard {
			if err := visit(n, "needed by "+name, false); err != nil {
				return err
			}
		}
		order = append(order, module{name, data, param[name]})
		return nil
	}
	for i, n := range names {
		name, parameters, _ := strings.Cut(n, " ")
		names[i] = name
		param[strings.ReplaceAll(strings.TrimSuffix(name, "?"), "-", "_")] = parameters
	}
	for _, n := range names {
		name, optional := strings.CutSuffix(n, "?")
		if err := visit(name, "on the list", optional); err != nil {
			return nil, err
		}
	}
	return order, nil
}

func readModule(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch {
	case strings.HasSuffix(path, ".ko"):
		return data, nil
	case strings.HasSuffix(path, ".ko.xz"):
		r, err := xz.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return io.ReadAll(r)
	}
	return nil, fmt.Errorf("%s: unknown compression, expected .ko or .ko.xz", path)
}

// needs returns the dependencies of a module from its section .modinfo: hard from "depends=a,b",
// and soft from the part before "post:" of "softdep=pre: a b post: c".
func needs(data []byte) (hard, soft []string, err error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, nil, errors.New("has no section .modinfo: it is no kernel module")
	}
	info, err := section.Data()
	if err != nil {
		return nil, nil, err
	}
	for word := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(word), "=")
		switch key {
		case "depends":
			hard = append(hard, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			if before, found := strings.CutPrefix(value, "pre:"); found {
				before, _, _ = strings.Cut(before, "post:")
				soft = append(soft, strings.Fields(before)...)
			}
		}
	}
	return hard, soft, nil
}
