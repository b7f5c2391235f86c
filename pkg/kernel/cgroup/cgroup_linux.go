// Package cgroup creates, limits, reads and removes control groups of the unified hierarchy (cgroup
// v2).
//
// It is a thin layer over the files of /sys/fs/cgroup (Documentation/admin-guide/cgroup-v2.rst). It
// does not support version 1 or device rules (BPF). It makes no decisions: machined/host and the
// descriptions of the services define the groups and their limits.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mount is the mount point of the hierarchy on a running machine, and Options are its mount
// options.
const (
	Mount   = "/sys/fs/cgroup"
	Options = "nsdelegate,memory_recursiveprot"
)

// The control groups of the system; the groups of services are below System.
const (
	System   = "/orlop"
	Machined = "/orlop/machined"
)

// SwapMax is the name of the file that limits how much memory of a group can be in swap.
const SwapMax = "memory.swap.max"

// Limits are the limits and the protected memory of a group. A zero value means the default of the
// kernel.
type Limits struct {
	MemoryMin  int64 // bytes that the kernel never reclaims (memory.min)
	MemoryLow  int64 // bytes that the kernel reclaims only as the last resort (memory.low)
	MemoryHigh int64 // bytes above which the kernel throttles the group (memory.high)
	MemoryMax  int64 // bytes above which the kernel kills processes (memory.max)
	// CPUWeight is the share of the group if processes of several groups compete for the CPU,
	// relative to the weights of the others: 1 to 10000 (cpu.weight). The kernel's default is 100.
	CPUWeight int
	PidsMax   int // maximum number of tasks (pids.max)
}

// Files returns the values to write, by the names of the files of the group. It omits zero values.
func (l Limits) Files() map[string]string {
	files := map[string]string{}
	for name, value := range map[string]int64{
		"memory.min": l.MemoryMin, "memory.low": l.MemoryLow, "memory.high": l.MemoryHigh, "memory.max": l.MemoryMax,
		"cpu.weight": int64(l.CPUWeight), "pids.max": int64(l.PidsMax),
	} {
		if value != 0 {
			files[name] = strconv.FormatInt(value, 10)
		}
	}
	return files
}

// Tree is the mount point of a hierarchy, which is Mount on a running machine. A group is named by
// its path below the mount point ("/orlop/apid").
type Tree string

// Make creates the group and its missing parents and writes the limits. The parents must already
// delegate the controllers of the limits (Delegate); otherwise Make fails.
func (t Tree) Make(group string, limits Limits) error {
	dir := t.path(group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cgroup %s: cannot create: %w", group, err)
	}
	return t.Set(group, limits.Files())
}

// Set writes the values to files of the group, in the order of the names of the files. It skips
// files that already have the value.
func (t Tree) Set(group string, files map[string]string) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		path := filepath.Join(t.path(group), name)
		have, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cgroup %s: cannot set %s: its parent does not delegate the controller, see cgroup.subtree_control", group, name)
		}
		if err == nil && strings.TrimSpace(string(have)) == files[name] {
			continue
		}
		if err := os.WriteFile(path, []byte(files[name]), 0); err != nil {
			return fmt.Errorf("cgroup %s: cannot set %s to %s: %w", group, name, files[name], err)
		}
	}
	return nil
}

// Read returns the content of one file of the group without the trailing newline. For a missing
// file it returns "" and no error.
func (t Tree) Read(group, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(t.path(group), name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cgroup %s: cannot read %s: %w", group, name, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Delegate delegates the controllers to the children of the group (cgroup.subtree_control). The
// root group can always delegate. The kernel does not permit any other group that itself contains
// processes to delegate most controllers ("no internal processes").
func (t Tree) Delegate(group string, controllers []string) error {
	have, err := t.Read(group, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(strings.Fields(have), c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	path := filepath.Join(t.path(group), "cgroup.subtree_control")
	if err := os.WriteFile(path, []byte(strings.Join(missing, " ")), 0); err != nil {
		return fmt.Errorf("cgroup %s: cannot delegate %s: %w", group, strings.Join(missing, " "), err)
	}
	return nil
}

// Move moves the process to the group; pid 0 is the caller.
func (t Tree) Move(group string, pid int) error {
	if err := os.WriteFile(filepath.Join(t.path(group), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("cgroup %s: cannot move process %d: %w", group, pid, err)
	}
	return nil
}

// Procs returns the IDs of the processes in the group itself, not in its children. If the group is
// missing, it returns no IDs and no error.
func (t Tree) Procs(group string) ([]int, error) {
	text, err := t.Read(group, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(text) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: cannot parse cgroup.procs: %w", group, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill sends SIGKILL to every process in the group and its descendants (cgroup.kill, Linux 5.14). A
// missing group is no error.
func (t Tree) Kill(group string) error {
	err := os.WriteFile(filepath.Join(t.path(group), "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cgroup %s: cannot kill: %w", group, err)
	}
	return nil
}

// Remove deletes the group, which must contain neither processes nor groups. A missing group is no
// error.
func (t Tree) Remove(group string) error {
	err := unix.Rmdir(t.path(group))
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("cgroup %s: cannot remove: %w", group, err)
	}
	return nil
}

// Open opens the directory of the group, so that a process can be started in the group
// (syscall.SysProcAttr.CgroupFD). The caller must close the directory.
func (t Tree) Open(group string) (*os.File, error) {
	dir, err := os.Open(t.path(group))
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: cannot open: %w", group, err)
	}
	return dir, nil
}

// Usage is the current usage of a group and its descendants. A value is 0 if the group does not
// have the controller.
type Usage struct {
	Memory     int64 // bytes, page cache included (memory.current)
	Anon       int64 // bytes of anonymous memory (memory.stat)
	CPUUsec    int64 // microseconds of CPU since the creation of the group (cpu.stat)
	Pids       int64 // tasks (pids.current)
	OOMKills   int64 // processes killed for lack of memory (memory.events)
	MemoryPeak int64 // bytes, maximum of Memory (memory.peak)
}

// Usage returns the current usage of the group.
func (t Tree) Usage(group string) (Usage, error) {
	var u Usage
	for _, f := range []struct {
		file, key string
		value     *int64
	}{
		{"memory.current", "", &u.Memory}, {"memory.peak", "", &u.MemoryPeak}, {"memory.stat", "anon", &u.Anon},
		{"cpu.stat", "usage_usec", &u.CPUUsec}, {"pids.current", "", &u.Pids}, {"memory.events", "oom_kill", &u.OOMKills},
	} {
		text, err := t.Read(group, f.file)
		if err != nil {
			return Usage{}, err
		}
		*f.value = number(text, f.key)
	}
	return u, nil
}

// number returns the number in the line "KEY NUMBER" of a text. If key is empty, it returns the
// number at the end of the first line. If there is no such number, it returns 0.
func number(text, key string) int64 {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if key != "" && (len(fields) != 2 || fields[0] != key) || len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

func (t Tree) path(group string) string { return filepath.Join(string(t), group) }
