package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLimitsFiles(t *testing.T) {
	got := Limits{MemoryMin: 1 << 20, CPUWeight: 200, PidsMax: 7}.Files()
	want := map[string]string{"memory.min": "1048576", "cpu.weight": "200", "pids.max": "7"}
	if !maps.Equal(got, want) {
		t.Fatalf("%v; want %v", got, want)
	}
}

// fake returns a Tree for a temporary directory with the given files. The directory replaces the
// hierarchy of the kernel.
func fake(t *testing.T, files map[string]string) Tree {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Tree(root)
}

func TestMakeAndDelegate(t *testing.T) {
	tree := fake(t, map[string]string{"cgroup.subtree_control": "cpu memory\n", "a/memory.min": "0\n", "a/memory.high": "max\n"})
	if err := tree.Make("/a", Limits{MemoryMin: 4096}); err != nil {
		t.Fatal(err)
	}
	if got, _ := tree.Read("/a", "memory.min"); got != "4096" {
		t.Errorf("memory.min is %q", got)
	}
	if err := tree.Make("/a", Limits{CPUWeight: 10}); err == nil {
		t.Error("Make accepts a CPU weight for a group without the file cpu.weight")
	}
	if err := tree.Delegate("/", []string{"memory", "pids"}); err != nil {
		t.Fatal(err)
	}
	if got, _ := tree.Read("/", "cgroup.subtree_control"); got != "+pids" {
		t.Errorf("Delegate wrote %q to cgroup.subtree_control; want only +pids, because memory is enabled already", got)
	}
}

func TestUsage(t *testing.T) {
	tree := fake(t, map[string]string{
		"a/memory.current": "100\n", "a/memory.stat": "anon 60\nfile 40\n", "a/cpu.stat": "usage_usec 5\nuser_usec 4\n",
		"a/pids.current": "3\n", "a/memory.events": "oom 1\noom_kill 2\n",
	})
	got, err := tree.Usage("/a")
	if want := (Usage{Memory: 100, Anon: 60, CPUUsec: 5, Pids: 3, OOMKills: 2}); got != want || err != nil {
		t.Fatalf("%+v, %v; want %+v", got, err, want)
	}
}

func TestMissingGroup(t *testing.T) {
	tree := Tree(t.TempDir())
	if err := tree.Remove("/gone"); err != nil {
		t.Error(err)
	}
	if err := tree.Kill("/gone"); err != nil {
		t.Error(err)
	}
	if pids, err := tree.Procs("/gone"); len(pids) != 0 || err != nil {
		t.Errorf("Procs of a group that does not exist = %v, %v; want none", pids, err)
	}
}

// TestKernel creates a group in the hierarchy of the kernel, uses the group and removes it. The
// test is skipped without root, or if no hierarchy of cgroup v2 is mounted.
func TestKernel(t *testing.T) {
	tree := Tree("")
	for _, mount := range []string{Mount, Mount + "/unified"} {
		var s unix.Statfs_t
		if unix.Statfs(mount, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC && unix.Access(mount, unix.W_OK) == nil {
			tree = Tree(mount)
		}
	}
	if tree == "" || os.Getuid() != 0 {
		t.Skip("needs root and a cgroup v2 hierarchy")
	}
	const group = "/orlop-cgroup-test"
	if err := tree.Make(group, Limits{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(group); err != nil {
			t.Error(err)
		}
	})
	dir, err := tree.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if pids, err := tree.Procs(group); len(pids) != 0 || err != nil {
		t.Errorf("a new group has the processes %v, %v; want none", pids, err)
	}
	if err := tree.Kill(group); err != nil {
		t.Error(err)
	}
}
