package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// These functions handle settings that a configuration no longer contains. A kernel parameter
// returns to its previous value. A module stays loaded until the next boot, and the machine reports
// it. The previous values are in memory only: the next boot starts with the kernel's defaults.

// PreviousSysctls returns the values of kernel parameters from before an operation first set them,
// for Config.PreviousSysctls.
func (k *Kernel) PreviousSysctls() map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.previous)
}

// recordPrevious stores the value of a parameter before it is set for the first time. If the
// parameter has an alternative, it also stores the value of the alternative, because the kernel
// then sets the alternative to 0.
func (k *Kernel) recordPrevious(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.recordValue(name)
	if other := sysctl.Alternative(name); other != "" {
		k.recordValue(other)
	}
}

// recordValue stores the value of a parameter, unless it is known. The caller holds mu.
func (k *Kernel) recordValue(name string) {
	if _, known := k.previous[name]; known {
		return
	}
	text, err := os.ReadFile(k.sysctlPath(name))
	if err != nil {
		return // there is no value to restore
	}
	if k.previous == nil {
		k.previous = map[string]string{}
	}
	k.previous[name] = normalizeBlanks(string(text))
}

// DifferentSysctls returns a line for each named parameter whose value differs from the value that
// the configuration c gives it. A parameter is also found by its other names (pkg/kernel/sysctl).
// For a parameter of a pair, DifferentSysctls also checks the other parameter of the pair. It omits
// parameters that the kernel lacks.
func (k *Kernel) DifferentSysctls(c Config, f Facts, names []string) (lines []string, err error) {
	named := func(want string) func(string) bool {
		return func(name string) bool {
			return sysctl.Canonical(name) == sysctl.Canonical(want) || sysctl.Alternative(name) == want
		}
	}
	for _, want := range planSysctls(c, f) {
		if !slices.ContainsFunc(names, named(want.Name)) {
			continue
		}
		value, there, err := k.readSysctl(want.Name)
		if err != nil {
			return nil, err
		}
		if there && !sameValue(value, want.Value) {
			lines = append(lines, fmt.Sprintf("%s is %q instead of %q", want.Name, value, want.Value))
		}
	}
	return lines, nil
}

func (k *Kernel) recordLoaded(names []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		if !slices.Contains(k.loaded, name) {
			k.loaded = append(k.loaded, name)
		}
	}
}

// LeftoverModules returns the modules that an operation has loaded, that are still in the
// kernel, and that the configuration no longer requires. They stay loaded until the next boot
// because their users are unknown.
func (k *Kernel) LeftoverModules(c Config) ([]string, error) {
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

// Unusable returns a line for each kernel parameter and module of the next configuration that
// cannot take effect on this kernel. Each line begins with the field of the Machine's spec.
// Settings that are also in before are omitted.
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

// modulePrefixes are the prefixes of parameters that a module may provide; all other parameters
// exist from boot.
var modulePrefixes = []string{"net.", "dev.", "fs."}

// unsettable returns why a parameter cannot be set. It returns "" if the parameter can be set, or
// if a module that is still to be loaded (pending) may provide it.
func (k *Kernel) unsettable(name string, pending bool) string {
	info, err := os.Stat(k.sysctlPath(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		brought := slices.ContainsFunc(modulePrefixes, func(part string) bool { return strings.HasPrefix(name, part) })
		if pending && brought {
			return ""
		}
		return "this kernel has no such parameter"
	case err != nil:
		return fmt.Sprintf("this kernel cannot read the parameter: %v", err)
	case info.IsDir():
		return "this is a group of parameters, not a parameter"
	case info.Mode().Perm()&0o200 == 0:
		return "this kernel makes it read-only"
	case info.Mode().Perm()&0o444 == 0:
		return "this parameter triggers an action and has no value"
	}
	return ""
}
