package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/kmod"
)

// What a configuration leaves behind when it no longer names it. A kernel parameter goes back to
// the value that it had before; a module stays until the next start, and that is said. Both are
// remembered for as long as the machine runs: the next start begins with the kernel's own.

// PreviousSysctls returns the values of kernel parameters from before an operation first set them, for
// Config.Former.
func (k *Kernel) PreviousSysctls() map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.former)
}

// noteFormer remembers the value of a parameter that is about to be set for the first time.
func (k *Kernel) noteFormer(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.former[name]; known {
		return
	}
	text, err := os.ReadFile(k.sysctlPath(name))
	if err != nil {
		return // there is nothing to go back to
	}
	if k.former == nil {
		k.former = map[string]string{}
	}
	k.former[name] = oneBlank(string(text))
}

func (k *Kernel) noteLoaded(names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		if !slices.Contains(k.loaded, name) {
			k.loaded = append(k.loaded, name)
		}
	}
}

// UnrestorableSysctls returns the modules that an operation has loaded, that are still in the kernel, and that
// a configuration no longer asks for. They stay until the next start: what uses them by now is not
// known.
func (k *Kernel) UnrestorableSysctls(c Config) ([]string, error) {
	wanted := planModules(c)
	k.mu.Lock()
	loaded := slices.Clone(k.loaded)
	k.mu.Unlock()
	var unwanted []Module
	for _, name := range loaded {
		if !slices.ContainsFunc(wanted, func(m Module) bool { return kmod.Normalize(m.Name) == kmod.Normalize(name) }) {
			unwanted = append(unwanted, Module{Name: name})
		}
	}
	states, err := k.readModules(unwanted)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range unwanted {
		if states[m.Name].Loaded {
			out = append(out, m.Name)
		}
	}
	return out, nil
}

// Unusable returns why single kernel parameters and modules of the next configuration cannot take
// effect on this kernel, one line each, which begins with the field of the Machine's spec. Those
// that before names already are left out.
func (k *Kernel) Unusable(before, next Config) (lines []string, err error) {
	wanted := planModules(next)
	states, err := k.readModules(wanted)
	if err != nil {
		return nil, err
	}
	for i, name := range next.Modules {
		if state := states[name]; !state.Known && !state.Loaded && !slices.Contains(before.Modules, name) {
			lines = append(lines, fmt.Sprintf("kernelModules[%d]: this system has no module %s", i, name))
		}
	}
	pending := slices.ContainsFunc(wanted, func(m Module) bool { return states[m.Name].Known && !states[m.Name].Loaded })
	for _, name := range slices.Sorted(maps.Keys(next.Sysctls)) {
		if _, known := before.Sysctls[name]; known {
			continue
		}
		if why := k.unsettable(name, pending); why != "" {
			lines = append(lines, fmt.Sprintf("sysctls[%q]: %s", name, why))
		}
	}
	return lines, nil
}

// moduleParts are the first parts of names of parameters that a module may bring along; the others
// are there from the start.
var moduleParts = []string{"net.", "dev.", "fs."}

// unsettable says why a parameter cannot be set; empty: it can, or it may come with a module that
// is still to be loaded (pending).
func (k *Kernel) unsettable(name string, pending bool) string {
	info, err := os.Stat(k.sysctlPath(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		brought := slices.ContainsFunc(moduleParts, func(part string) bool { return strings.HasPrefix(name, part) })
		if pending && brought {
			return ""
		}
		return "this kernel has no such parameter"
	case err != nil:
		return fmt.Sprintf("this kernel has no such parameter that can be read: %v", err)
	case info.IsDir():
		return "this is a group of parameters and not one"
	case info.Mode().Perm()&0o200 == 0:
		return "this kernel does not let it be set"
	case info.Mode().Perm()&0o444 == 0:
		return "this is an order to the kernel, and keeps no value"
	}
	return ""
}
