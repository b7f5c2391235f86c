// Package kmod finds kernel modules by name or by modalias, and loads them with their dependencies.
//
// It reads the files of depmod once (modules.dep, modules.alias, modules.softdep, modules.builtin;
// see kmod's modules.dep(5)), and holds their content in memory. It passes module files (.ko or
// .ko.xz) to the kernel unchanged, because the kernel unpacks .ko.xz files itself
// (CONFIG_MODULE_DECOMPRESS). The package has no blacklist, because the system can load all modules
// that it contains. It does not unload modules: the machine reboots to unload them. Callers cannot
// set module parameters.
//
// github.com/pmorjan/kmod was tried first. It reads every file again for each module, which is
// expensive on an emulated processor. It matches no alias patterns, so it cannot find a module for
// a modalias. It hides errors of dependencies, and loads modules sequentially.
package kmod

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/glob"
)

// ErrNotFound is the error for a name that is neither a module nor an alias of a module.
var ErrNotFound = errors.New("no such module")

// Index is the content of depmod's files for one directory of modules. It is read-only after Read
// and safe for concurrent use.
type Index struct {
	dir   string
	files map[string]string // module name → path of the file
	// module name → names of all modules that it needs, directly or indirectly, in the order of
	// modules.dep: each module in the list is before the modules that it needs itself
	needs map[string][]string
	// module name → names of the modules, or aliases, of its soft dependencies ("softdep … pre:"):
	// they are loaded before the module, if they exist
	soft    map[string][]string
	builtin map[string]bool
	aliases []byte // content of modules.alias, not parsed, because most lines are never needed
}

// Read reads the index files in dir, which is paths.Modules/<kernel release>. modules.dep must
// exist; each of the other files can be missing.
func Read(dir string) (*Index, error) {
	dep, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: cannot read index: %w", err)
	}
	x := &Index{dir: dir, files: map[string]string{}, needs: map[string][]string{}, soft: map[string][]string{}, builtin: map[string]bool{}}
	for line := range bytes.Lines(dep) {
		file, needs, ok := strings.Cut(string(line), ":")
		if !ok {
			continue
		}
		name := NameOf(file)
		x.files[name] = filepath.Join(dir, file)
		for _, need := range strings.Fields(needs) {
			x.needs[name] = append(x.needs[name], NameOf(need))
		}
	}
	for _, optional := range []struct {
		name string
		use  func([]byte)
	}{
		{"modules.alias", func(b []byte) { x.aliases = b }},
		{"modules.softdep", x.readSoftdep},
		{"modules.builtin", func(b []byte) {
			for line := range bytes.Lines(b) {
				x.builtin[NameOf(string(bytes.TrimSpace(line)))] = true
			}
		}},
	} {
		b, err := os.ReadFile(filepath.Join(dir, optional.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("kernel modules: cannot read index: %w", err)
		}
		optional.use(b)
	}
	return x, nil
}

// readSoftdep reads lines of the form "softdep NAME pre: A B post: C". It ignores the modules after
// "post:", because these are loaded by modalias or by name anyway.
func (x *Index) readSoftdep(b []byte) {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) < 3 || fields[0] != "softdep" {
			continue
		}
		pre := false
		for _, field := range fields[2:] {
			switch {
			case field == "pre:" || field == "post:":
				pre = field == "pre:"
			case pre:
				name := Normalize(fields[1])
				x.soft[name] = append(x.soft[name], Normalize(field))
			}
		}
	}
}

// With returns an index with the modules of x and of the index `more`. If both contain a module,
// the result has the module of x. The built-in modules of the result are those of x only.
func (x *Index) With(more *Index) *Index {
	both := &Index{dir: x.dir, files: maps.Clone(more.files), needs: maps.Clone(more.needs), soft: maps.Clone(more.soft), builtin: x.builtin}
	maps.Copy(both.files, x.files)
	maps.Copy(both.needs, x.needs)
	maps.Copy(both.soft, x.soft)
	both.aliases = slices.Concat(x.aliases, more.aliases)
	return both
}

// Names lists all modules with a file, sorted.
func (x *Index) Names() []string {
	names := make([]string, 0, len(x.files))
	for name := range x.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Step is a module to load.
type Step struct {
	Name string
	File string // path that begins with the argument of Read
	// After contains the names of the modules to load before this module. They are in earlier
	// steps.
	After []string
	// Soft means that the module is only an optional dependency, so an error of its load is
	// ignored.
	Soft bool
}

// Plan returns the steps that load the modules with the given names, each module once, dependencies
// first. A name may contain hyphens or underscores; it may also be an alias ("fs-erofs"). There is
// no step for a built-in module. For a name that is neither a module nor an alias nor built in,
// Plan returns an error that wraps ErrNotFound, together with the steps for the other names.
func (x *Index) Plan(names ...string) ([]Step, error) {
	var steps []Step
	var errs []error
	seen, planned := map[string]bool{}, map[string]bool{}
	var add func(name string, soft bool) bool
	add = func(name string, soft bool) bool {
		if seen[name] || x.builtin[name] {
			return true
		}
		file, ok := x.files[name]
		if !ok {
			return false
		}
		seen[name] = true
		step := Step{Name: name, File: file, Soft: soft}
		for _, pre := range x.soft[name] {
			modules := []string{pre}
			if !add(pre, true) {
				modules = x.Match(pre) // an alias, such as crc32c for libcrc32c
			}
			for _, m := range modules {
				add(m, true)
				// Soft dependencies may form cycles. If m is not planned yet, m is an earlier
				// module of the same cycle; to wait for m would be a deadlock.
				if planned[m] {
					step.After = append(step.After, m)
				}
			}
		}
		for _, need := range slices.Backward(x.needs[name]) {
			add(need, soft)
			if planned[need] && !slices.Contains(step.After, need) {
				step.After = append(step.After, need)
			}
		}
		steps = append(steps, step)
		planned[name] = true
		return true
	}
	for _, name := range names {
		plain := Normalize(name)
		if add(plain, false) {
			continue
		}
		found := x.Match(name)
		for _, module := range found {
			add(module, false)
		}
		if len(found) == 0 {
			errs = append(errs, fmt.Errorf("kernel module %s: %w in %s", name, ErrNotFound, x.dir))
		}
	}
	return steps, errors.Join(errs...)
}

// Match returns the sorted names of the modules with an alias pattern that matches at least one of
// the modaliases. Each call reads the whole alias list, so callers should pass all modaliases in a
// single call.
func (x *Index) Match(modaliases ...string) []string {
	// bus → modaliases of the bus; a pattern is compared only with the modaliases of its own bus
	byBus := map[string][]string{}
	for _, alias := range modaliases {
		alias = Normalize(alias)
		byBus[busOf(alias)] = append(byBus[busOf(alias)], alias)
	}
	found := map[string]bool{}
	for line := range bytes.Lines(x.aliases) {
		rest, ok := bytes.CutPrefix(line, []byte("alias "))
		if !ok {
			continue
		}
		space := bytes.LastIndexByte(rest, ' ')
		if space < 0 {
			continue
		}
		pattern := rest[:space]
		candidates := byBus[busOf(string(pattern))]
		if len(candidates) == 0 {
			continue
		}
		module := Normalize(string(bytes.TrimSpace(rest[space:])))
		if found[module] {
			continue
		}
		normal := Normalize(string(pattern))
		found[module] = slices.ContainsFunc(candidates, func(alias string) bool { return glob.Match(normal, alias) })
	}
	var modules []string
	for module, matched := range found {
		if matched {
			modules = append(modules, module)
		}
	}
	slices.Sort(modules)
	return modules
}

// Normalize replaces hyphens in a module name, an alias or a pattern by underscores, as the kernel
// does. It does not replace hyphens in brackets, which are ranges.
func Normalize(s string) string {
	if !strings.Contains(s, "-") {
		return s
	}
	b := []byte(s)
	inside := false
	for i, c := range b {
		switch {
		case c == '[':
			inside = true
		case c == ']':
			inside = false
		case c == '-' && !inside:
			b[i] = '_'
		}
	}
	return string(b)
}

// busOf returns the bus of a modalias: the letters and digits before the first other character
// ("pci" of pci:v00001AF4d…). Patterns have no wildcard in this part, except patterns for dmi,
// which no caller matches.
func busOf(alias string) string {
	end := strings.IndexFunc(alias, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
	if end < 0 {
		return Normalize(alias)
	}
	return Normalize(alias[:end])
}

// NameOf returns the normalized module name of a file: "erofs" for "kernel/fs/erofs/erofs.ko.xz".
func NameOf(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	return Normalize(name)
}
