// Package cgroup makes, limits, reads and removes control groups of the unified hierarchy (cgroup
// v2).
//
// It is a thin layer over the files of /sys/fs/cgroup (Documentation/admin-guide/cgroup-v2.rst). It
// knows no version 1, no devices (BPF), and decides nothing: which groups there are and what they
// may use is machined/host's and the services' business.
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

// Mount is where the hierarchy is mounted on a running machine.
const Mount = "/sys/fs/cgroup"

// Limits are what a group may use and what is kept for it. Zero values are left as the kernel has
// them.
type Limits struct {
	MemoryMin  int64 // bytes never reclaimed from it (memory.min)
	MemoryLow  int64 // bytes reclaimed only if nothing else is left (memory.low)
	MemoryHigh int64 // bytes above which it is slowed down (memory.high)
	MemoryMax  int64 // bytes above which it is killed (memory.max)
	// share of the CPU under contention, 1 to 10000, the kernel's default is 100 (cpu.weight)
	CPUWeight int
	PidsMax   int // greatest number of tasks (pids.max)
}

// Files returns the files to write for the limits, by name.
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

// Tree is a hierarchy mounted at a folder, Mount on a running machine. Groups are named by their
// path below it ("/orlop/apid").
type Tree string

// Make creates the group and its parents where they are missing and writes the limits. The parents
// must already hand down the controllers that the limits need (see Delegate); a limit whose
// controller is missing is an error that says so.
func (t Tree) Make(group string, limits Limits) error {
	dir := t.path(group)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cgroup %s: cannot create: %w", group, err)
	}
	return t.Set(group, limits.Files())
}

// Set writes files of the group, in the order of their names. Values that stand there already are
// not written again.
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
			return fmt.Errorf("cgroup %s: cannot set %s: the controller is not handed down by its parent, see cgroup.subtree_control", group, name)
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

// Read returns the content of one file of the group without the trailing newline; "" and no error
// when it is missing.
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

// Delegate hands the controllers down to the group's children (cgroup.subtree_control). A group
// that holds processes itself cannot hand down most controllers ("no internal processes"), except
// the root.
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
		return fmt.Errorf("cgroup %s: cannot hand down %s: %w", group, strings.Join(missing, " "), err)
	}
	return nil
}

// Move puts the process into the group; pid 0 is the caller.
func (t Tree) Move(group string, pid int) error {
	if err := os.WriteFile(filepath.Join(t.path(group), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("cgroup %s: cannot take process %d: %w", group, pid, err)
	}
	return nil
}

// Procs returns the ids of the processes in the group itself, without its children's; none when the
// group is missing.
func (t Tree) Procs(group string) ([]int, error) {
	text, err := t.Read(group, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, field := range strings.Fields(text) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: cannot understand cgroup.procs: %w", group, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill sends SIGKILL to every process in the group and below (cgroup.kill, Linux 5.14). A missing
// group is no error.
func (t Tree) Kill(group string) error {
	err := os.WriteFile(filepath.Join(t.path(group), "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cgroup %s: cannot kill: %w", group, err)
	}
	return nil
}

// Remove deletes the group, which must hold neither processes nor groups. A missing group is no
// error.
func (t Tree) Remove(group string) error {
	err := unix.Rmdir(t.path(group))
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("cgroup %s: cannot remove: %w", group, err)
	}
	return nil
}

// Open returns the group's folder for starting a process directly in it
// (syscall.SysProcAttr.CgroupFD). The caller closes it.
func (t Tree) Open(group string) (*os.File, error) {
	dir, err := os.Open(t.path(group))
	if err != nil {
		return nil, fmt.Errorf("cgroup %s: cannot open: %w", group, err)
	}
	return dir, nil
}

// Usage is what a group uses now, with everything below it. Figures of controllers that are missing
// are 0.
type Usage struct {
	Memory     int64 // bytes, with page cache (memory.current)
	Anon       int64 // bytes of anonymous memory (memory.stat)
	CPUUsec    int64 // microseconds of CPU since the group was made (cpu.stat)
	Pids       int64 // tasks (pids.current)
	OOMKills   int64 // processes killed for lack of memory (memory.events)
	MemoryPeak int64 // bytes, the greatest Memory (memory.peak)
}

// Usage reads what the group uses.
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

// number returns the number that stands after key at the beginning of a line, or the whole text
// when key is empty; 0 when there is none.
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
