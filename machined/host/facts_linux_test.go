package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
)

// TestFactsOfThisKernel checks that the facts of the kernel on which the test runs can be read and
// are plausible.
func TestFactsOfThisKernel(t *testing.T) {
	k := NewKernel(nil)
	facts, err := k.ReadFacts()
	if err != nil || facts.Memory < 64<<20 || facts.CPUs < 1 {
		t.Errorf("facts %+v, %v", facts, err)
	}
	system, err := k.ReadSystem()
	if err != nil || system.Kernel == "" || system.UptimeSeconds <= 0 || system.IdleSeconds <= 0 || system.Started.IsZero() {
		t.Errorf("system %+v, %v", system, err)
	}
	if mounts, err := k.ReadMounts(); err != nil || len(mounts) == 0 {
		t.Errorf("mounts %v, %v", mounts, err)
	}
	processes, err := k.ReadProcesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if p.PID == os.Getpid() {
			if p.ProcessorSeconds < 0 || p.Anonymous == 0 || p.Threads == 0 || p.Parent != os.Getppid() || p.UID != os.Getuid() {
				t.Errorf("the process of the test: %+v", p)
			}
			return
		}
	}
	t.Error("the process of the test is not in the list")
}

// TestProcessorSeconds checks that processorSeconds reads the processor time from a line of
// /proc/PID/stat, also if the name of the process contains a parenthesis.
func TestProcessorSeconds(t *testing.T) {
	const stat = "196 (odd) name) S 1 196 196 0 -1 4194560 41 0 300 0 1234 66 0 0 20 0 9 0 1193 1 2 18446744073709551615"
	if got := processorSeconds(stat); got != 13 {
		t.Errorf("%v, want 13", got)
	}
	if got := processorSeconds("196 (cut) S 1"); got != 0 {
		t.Errorf("an incomplete line: %v, want 0", got)
	}
}

// fakeKernel returns a Kernel that reads and writes the given files in a temporary directory
// instead of /proc, /sys and the control groups.
func fakeKernel(t *testing.T, files map[string]string) *Kernel {
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
	return &Kernel{
		proc: filepath.Join(root, "proc"), sys: filepath.Join(root, "sys"), machineID: filepath.Join(root, "run/machine-id"),
		tree: cgroup.Tree(filepath.Join(root, "cgroup")), modules: func() (*kmod.Index, error) { return kmod.Read(filepath.Join(root, "modules")) },
	}
}

func TestModules(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"proc/modules":          "veth 45056 0 - Live 0x0\nstp 12288 1 bridge, Live 0x0\n",
		"modules/modules.dep":   "kernel/a.ko: kernel/b.ko\nkernel/b.ko:\n",
		"modules/modules.alias": "", "modules/modules.builtin": "kernel/fs/built-in.ko\n",
		"sys/module/b/refcnt": "1\n",
	})
	list, err := k.ReadModules()
	if err != nil || len(list) != 2 || len(list[0].UsedBy) != 0 || list[1].UsedBy[0] != "bridge" || list[1].Size != 12288 {
		t.Errorf("%+v, %v", list, err)
	}
	states, err := k.readModules([]Module{{Name: "a"}, {Name: "b"}, {Name: "built-in"}, {Name: "none"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]ModuleState{"a": {Known: true}, "b": {Known: true, Loaded: true}, "built-in": {Known: true, Loaded: true}, "none": {}} {
		if states[name] != want {
			t.Errorf("%s: %+v; want %+v", name, states[name], want)
		}
	}
	if err := k.do(Op{Verb: LoadModules, Names: []string{"none"}}); !errors.Is(err, kmod.ErrNotFound) {
		t.Errorf("error %v; want: not found", err)
	}
}

// TestOperations runs the operations that work on plain files.
func TestOperations(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"proc/sys/net/ipv4/conf/eth0.7/rp_filter": "0\n", "proc/sys/kernel/modprobe": "/sbin/modprobe\n",
		"cgroup/cgroup.controllers": "cpu memory", "cgroup/cgroup.subtree_control": "", "cgroup/orlop/cgroup.procs": "", "cgroup/orlop/memory.min": "0\n",
	})
	ops := []Op{
		{Verb: SetSysctl, Name: "net.ipv4.conf.eth0/7.rp_filter", Value: "2"},
		{Verb: SetSysctl, Name: "kernel.modprobe", Value: ""},
		{Verb: MakeGroup, Name: "/orlop/machined"},
		{Verb: Delegate, Name: "/", Names: controllers},
		{Verb: SetGroup, Group: "/orlop", Name: "memory.min", Value: "4096"},
		{Verb: WriteID, Value: "0123456789abcdef0123456789abcdef"},
	}
	for range 2 { // each operation can be repeated
		for _, op := range k.Bind(ops) {
			if err := op.Do(t.Context()); err != nil {
				t.Fatalf("%s: %v", op, err)
			}
		}
	}
	for file, want := range map[string]string{
		filepath.Join(k.proc, "sys/net/ipv4/conf/eth0.7/rp_filter"): "2\n",
		filepath.Join(k.proc, "sys/kernel/modprobe"):                "\n",
		filepath.Join(string(k.tree), "cgroup.subtree_control"):     "+cpu +memory",
		filepath.Join(string(k.tree), "orlop/memory.min"):           "4096",
		k.machineID: "0123456789abcdef0123456789abcdef\n",
	} {
		if got, err := os.ReadFile(file); string(got) != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
	if err := k.do(Op{Verb: SetSysctl, Name: "no.such", Value: "1"}); err == nil {
		t.Error("a parameter that does not exist was set")
	}
}
