package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"golang.org/x/sys/unix"
)

// Kernel is the machine's kernel, for reading and for operations.
type Kernel struct {
	proc, sys string // mount points of proc and sysfs
	machineID string // path of the file with the machine ID
	tree      cgroup.Tree
	modules   func() (*kmod.Index, error) // index of the running kernel's modules, read once

	mu sync.Mutex
	// values of kernel parameters from before they were first set here, by name
	previous map[string]string
	loaded   []string // modules that an operation has loaded
	// index with the modules of extensions; nil: there are none
	extended *kmod.Index
}

// NewKernel returns the running kernel. index reads the module index on first use: usually
// sync.OnceValues around kmod.Read, shared with the code that loads modules for devices.
func NewKernel(index func() (*kmod.Index, error)) *Kernel {
	return &Kernel{proc: "/proc", sys: "/sys", machineID: paths.MachineID, tree: cgroup.Mount, modules: index}
}

// Modules returns the index of the running kernel's modules, including the modules that AddModules
// has added.
func (k *Kernel) Modules() (*kmod.Index, error) {
	k.mu.Lock()
	extended := k.extended
	k.mu.Unlock()
	if extended != nil {
		return extended, nil
	}
	return k.modules()
}

// AddModules adds the modules in these directories to the index; each directory has an index of its
// own. Then it loads the drivers of devices that have no driver. If the image has a module with the
// same name, the module of the image is used.
func (k *Kernel) AddModules(dirs []string) error {
	index, err := k.Modules()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		more, err := kmod.Read(dir)
		if err != nil {
			return err
		}
		index = index.With(more)
	}
	k.mu.Lock()
	k.extended = index
	k.mu.Unlock()
	aliases, err := kmod.Devices(k.sys)
	if err != nil {
		return err
	}
	drivers := index.Match(aliases...)
	if len(drivers) == 0 {
		return nil
	}
	return k.LoadModules(drivers...)
}

// ModuleIndex returns a function that reads the index of the running kernel's modules on its first
// call.
func ModuleIndex() func() (*kmod.Index, error) {
	return sync.OnceValues(func() (*kmod.Index, error) {
		release, err := kmod.Release()
		if err != nil {
			return nil, err
		}
		return kmod.Read(filepath.Join(paths.Modules, release))
	})
}

// Read reads the actual state of all items in want.
func (k *Kernel) Read(want Want) (Have, error) {
	have := Have{Rlimits: map[string]Rlimit{}, Sysctls: map[string]string{}, Groups: map[string]GroupState{}}
	var err error
	if have.Modules, err = k.readModules(want.Modules); err != nil {
		return have, err
	}
	if have.Mounts, err = mount.List(); err != nil {
		return have, err
	}
	if have.Shared, err = rootIsShared(); err != nil {
		return have, err
	}
	for _, s := range want.Sysctls {
		value, there, err := k.readSysctl(s.Name)
		if err != nil {
			return have, err
		}
		if there {
			have.Sysctls[s.Name] = value
		}
	}
	for _, r := range want.Rlimits {
		resource, err := rlimitNumber(r.Name)
		if err != nil {
			return have, err
		}
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(resource, &limit); err != nil {
			return have, fmt.Errorf("resource limit %s: cannot read: %w", r.Name, err)
		}
		have.Rlimits[r.Name] = Rlimit{r.Name, limit.Cur, limit.Max}
	}
	if err := k.readGroups(&have, want.Groups); err != nil {
		return have, err
	}
	id, err := os.ReadFile(k.machineID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return have, fmt.Errorf("machine id: cannot read: %w", err)
	}
	have.MachineID = strings.TrimSpace(string(id))
	return have, nil
}

func (k *Kernel) readModules(wanted []Module) (map[string]ModuleState, error) {
	states := map[string]ModuleState{}
	for _, m := range wanted {
		if _, err := os.Stat(filepath.Join(k.sys, "module", kmod.Normalize(m.Name))); err == nil {
			states[m.Name] = ModuleState{Loaded: true, Known: true}
			continue
		}
		index, err := k.Modules()
		if err != nil {
			return nil, err
		}
		steps, err := index.Plan(m.Name)
		if errors.Is(err, kmod.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// without a step to load, the module is built into the kernel
		states[m.Name] = ModuleState{Known: true, Loaded: len(steps) == 0}
	}
	return states, nil
}

func rootIsShared() (bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter("/"))
	if err != nil {
		return false, fmt.Errorf("mounts: cannot list: %w", err)
	}
	return len(infos) > 0 && strings.Contains(infos[len(infos)-1].Optional, "shared:"), nil
}

func (k *Kernel) readGroups(have *Have, wanted []Group) error {
	var s unix.Statfs_t
	if unix.Statfs(string(k.tree), &s) != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil // the hierarchy is not mounted yet, so no group exists
	}
	for _, g := range wanted {
		if _, err := os.Stat(filepath.Join(string(k.tree), g.Path)); err != nil {
			continue
		}
		state := GroupState{Files: map[string]string{}}
		for _, list := range []struct {
			file string
			into *[]string
		}{{"cgroup.controllers", &state.Available}, {"cgroup.subtree_control", &state.Delegated}} {
			text, err := k.tree.Read(g.Path, list.file)
			if err != nil {
				return err
			}
			*list.into = strings.Fields(text)
		}
		for file := range g.Files {
			path := filepath.Join(string(k.tree), g.Path, file)
			value, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("cgroup %s: cannot read %s: %w", g.Path, file, err)
			}
			state.Files[file] = strings.TrimSpace(string(value))
		}
		have.Groups[g.Path] = state
	}
	text, err := os.ReadFile(filepath.Join(k.proc, "self/cgroup"))
	if err != nil {
		return fmt.Errorf("machined's control group: cannot read: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		// cgroups(7): the unified hierarchy has number 0
		if home, ok := strings.CutPrefix(line, "0::"); ok {
			have.Home = strings.TrimSpace(home)
		}
	}
	return nil
}

// sysctlPath returns the file of a name such as "net.ipv4.ip_forward". As in sysctl(8), a slash in
// a name stands for a dot inside a part ("net.ipv4.conf.eth0/100.arp_ignore").
func (k *Kernel) sysctlPath(name string) string {
	swap := func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}
	return filepath.Join(k.proc, "sys", strings.Map(swap, name))
}

func rlimitNumber(name string) (int, error) {
	switch name {
	case "nofile":
		return unix.RLIMIT_NOFILE, nil
	case "core":
		return unix.RLIMIT_CORE, nil
	case "nproc":
		return unix.RLIMIT_NPROC, nil
	case "memlock":
		return unix.RLIMIT_MEMLOCK, nil
	}
	return 0, fmt.Errorf("resource limit %s: unknown", name)
}
