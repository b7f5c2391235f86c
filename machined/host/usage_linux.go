package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

// FilesystemState is the usage of a mounted file system.
type FilesystemState struct {
	Target string `json:"target"`
	Source string `json:"source"`
	Type   string `json:"type"`
	Size   int64  `json:"size"` // bytes, like Used and Available
	Used   int64  `json:"used"`
	// available to unprivileged processes; less than the free space
	Available int64 `json:"available"`
	// maximum number of files; missing if there is no limit
	Inodes     int64 `json:"inodes,omitempty"`
	InodesUsed int64 `json:"inodesUsed,omitempty"`
}

// localTypes are the file systems that answer statfs at once because they depend on no network and
// no FUSE process. Overlays are omitted because they repeat the lower file systems.
var localTypes = []string{"erofs", "ext2", "ext3", "ext4", "iso9660", "squashfs", "tmpfs", "vfat", "xfs", "btrfs"}

// ReadUsage returns the usage of the local file systems, each once, in mount order.
func (k *Kernel) ReadUsage() ([]FilesystemState, error) {
	mounts, err := mount.List()
	if err != nil {
		return nil, err
	}
	list := []FilesystemState{}
	for _, m := range measurable(mounts) {
		var s unix.Statfs_t
		if unix.Statfs(m.Target, &s) != nil {
			continue // it was unmounted in the meantime
		}
		list = append(list, filesystemState(m, s))
	}
	return list, nil
}

// measurable returns the mounts that represent a distinct file system: the first mount of each
// device, and the file systems in memory. It omits the volumes of pods and the shared memory that
// containerd mounts for each pod: they are many, and their memory is that of the pods.
func measurable(mounts []mount.Mount) []mount.Mount {
	var list []mount.Mount
	seen := map[string]bool{}
	for _, m := range mounts {
		key := m.Target
		if strings.HasPrefix(m.Source, "/dev/") {
			key = m.Source
		} else if strings.HasPrefix(m.Target, paths.KubeletData+"/") || m.Source == "shm" {
			continue
		}
		if slices.Contains(localTypes, m.Type) && !seen[key] {
			seen[key] = true
			list = append(list, m)
		}
	}
	return list
}

func filesystemState(m mount.Mount, s unix.Statfs_t) FilesystemState {
	unit := int64(s.Frsize)
	if unit == 0 {
		unit = int64(s.Bsize)
	}
	state := FilesystemState{Target: m.Target, Source: m.Source, Type: m.Type,
		Size: int64(s.Blocks) * unit, Used: int64(s.Blocks-s.Bfree) * unit, Available: int64(s.Bavail) * unit, InodesUsed: int64(s.Files - s.Ffree)}
	if s.Files <= math.MaxInt64 { // erofs reports the maximum of the type
		state.Inodes = int64(s.Files)
	}
	return state
}

// maxGroups limits the list of control groups: a node with 250 pods has about 1000.
const maxGroups = 4096

// GroupUsage is the usage of a control group, descendants included.
type GroupUsage struct {
	Path       string `json:"path"`
	Tasks      int64  `json:"tasks"`
	Memory     int64  `json:"memory"` // bytes, cached files included
	MemoryPeak int64  `json:"memoryPeak"`
	// limit in bytes, beyond which processes are killed; missing: the group itself has no limit
	MemoryMax int64 `json:"memoryMax,omitempty"`
	Anonymous int64 `json:"anonymous"` // bytes that belong to no file
	// ProcessorSeconds is the processor time since the creation of the group.
	ProcessorSeconds float64 `json:"processorSeconds"`
	OOMKills         int64   `json:"oomKills"` // processes killed for lack of memory
}

// ReadGroups lists the control groups, parents first. Groups that disappear during the walk are
// omitted.
func (k *Kernel) ReadGroups() ([]GroupUsage, error) {
	list := []GroupUsage{}
	err := filepath.WalkDir(string(k.tree), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.IsDir() {
			return err
		}
		if len(list) == maxGroups {
			return fs.SkipAll
		}
		group := "/" + strings.TrimPrefix(strings.TrimPrefix(path, string(k.tree)), "/")
		u, err := k.tree.Usage(group)
		if err != nil {
			return nil // its files are gone too (ENODEV)
		}
		limit := number(path, "memory.max") // "max" means no limit
		list = append(list, GroupUsage{Path: group, Tasks: u.Pids, Memory: u.Memory, MemoryPeak: u.MemoryPeak, MemoryMax: int64(limit),
			Anonymous: u.Anon, ProcessorSeconds: float64(u.CPUUsec) / 1e6, OOMKills: u.OOMKills})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("control groups: cannot list: %w", err)
	}
	return list, nil
}

// SysctlState is a kernel parameter that the machine sets.
type SysctlState struct {
	Name   string `json:"name"`
	Value  string `json:"value"`  // actual value; empty if the kernel does not have the parameter
	Wanted string `json:"wanted"` // desired value
	By     string `json:"by"`     // source of the desired value: "system" or "configuration"
}

// ReadSysctls lists the kernel parameters that the configuration and the system set. All others are
// readable below /proc/sys.
func (k *Kernel) ReadSysctls(c Config) ([]SysctlState, error) {
	facts, err := k.ReadFacts()
	if err != nil {
		return nil, err
	}
	list := []SysctlState{}
	for _, s := range planSysctls(c, facts) {
		value, there, err := k.readSysctl(s.Name)
		if err != nil {
			return nil, err
		}
		if !there && s.Optional {
			continue
		}
		state := SysctlState{Name: s.Name, Value: value, Wanted: s.Value, By: "system"}
		if set, ours := c.Sysctls[s.Name]; ours && set == s.Value {
			state.By = "configuration"
		}
		list = append(list, state)
	}
	return list, nil
}

// normalizeBlanks separates the values of a parameter by a single blank; the kernel prints tabs.
func normalizeBlanks(value string) string { return strings.Join(strings.Fields(value), " ") }

// readSysctl reads a kernel parameter; there is false if the kernel does not have it.
func (k *Kernel) readSysctl(name string) (value string, there bool, err error) {
	text, err := os.ReadFile(k.sysctlPath(name))
	switch {
	case err == nil:
		return normalizeBlanks(string(text)), true, nil
	case errors.Is(err, fs.ErrPermission):
		return "(cannot be read)", true, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", false, nil
	}
	return "", false, fmt.Errorf("kernel parameter %s: cannot read: %w", name, err)
}
