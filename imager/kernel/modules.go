package kernel

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// indexes are the index files of depmod that the image contains. The programs of the image read
// text files only; the binary index files are for the library of kmod.
var indexes = []string{"modules.alias", "modules.builtin", "modules.dep", "modules.softdep"}

// Select returns the sorted files of the modules that match the patterns, and of all their
// dependencies. A pattern is the name of a module (dm-verity; - and _ are the same). It can also be
// a directory below kernel/ with a slash at its end (net/netfilter/), for all modules in it. Select
// fails if a pattern matches no module. A module that is built into the kernel counts as a match.
func (k *Kernel) Select(patterns []string) ([]string, error) {
	selected := map[string]bool{}
	for _, p := range patterns {
		found := false
		if strings.HasSuffix(p, "/") {
			for file := range k.deps {
				if strings.HasPrefix(file, "kernel/"+p) {
					selected[file], found = true, true
				}
			}
		} else {
			name := moduleName(p)
			file, ok := k.files[name]
			if ok {
				selected[file] = true
			}
			found = ok || k.builtin[name]
		}
		if !found {
			return nil, fmt.Errorf("kernel %s has no module %q", k.Release, p)
		}
	}
	for _, file := range slices.Collect(maps.Keys(selected)) {
		for _, need := range k.deps[file] {
			selected[need] = true // modules.dep contains indirect dependencies, too
		}
	}
	return slices.Sorted(maps.Keys(selected)), nil
}

// Names returns the names of the loadable modules that match the patterns, in the order of the
// patterns, without dependencies. It omits modules that are built into the kernel.
func (k *Kernel) Names(patterns []string) []string {
	var names []string
	for _, p := range patterns {
		if name := moduleName(p); k.files[name] != "" {
			names = append(names, name)
		}
	}
	return names
}

// Tree returns the module tree of a selection. It maps paths below lib/modules/<release>/ to files
// on this computer. The indexes are for exactly these modules. Tree makes them in the directory
// work, which it empties first.
func (k *Kernel) Tree(files []string, work string) (map[string]string, error) {
	if err := os.RemoveAll(work); err != nil {
		return nil, err
	}
	from := filepath.Join(k.base, "lib/modules", k.Release)
	to := filepath.Join(work, "lib/modules", k.Release)
	tree := map[string]string{}
	for _, f := range files {
		dst := filepath.Join(to, f)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return nil, err
		}
		src, err := filepath.Abs(filepath.Join(from, f))
		if err != nil {
			return nil, err
		}
		if err := os.Symlink(src, dst); err != nil {
			return nil, err
		}
		tree[f] = src
	}
	for _, f := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
		data, err := os.ReadFile(filepath.Join(from, f))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(to, f), data, 0o644); err != nil {
			return nil, err
		}
	}
	if err := depmod(work, k.Release); err != nil {
		return nil, err
	}
	for _, f := range indexes {
		tree[f] = filepath.Join(to, f)
	}
	return tree, nil
}
