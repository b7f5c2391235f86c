package host

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// afterInit returns the state of a machine after init: the state that withoutGroups returns, with
// the mounted hierarchy of control groups, the group of the system and the group of machined.
func afterInit(w Want) Have {
	have := withoutGroups(w)
	for _, m := range w.Mounts {
		if m.Type == "cgroup2" {
			apply(&have, Op{Verb: MountFS, Mount: m})
		}
	}
	for _, parent := range []string{"/", cgroup.System} {
		if parent != "/" {
			apply(&have, Op{Verb: MakeGroup, Name: parent})
		}
		apply(&have, Op{Verb: Delegate, Name: parent, Names: []string{"memory"}})
	}
	apply(&have, Op{Verb: MakeGroup, Name: cgroup.Machined})
	apply(&have, Op{Verb: EnterGroup, Name: cgroup.Machined})
	return have
}

// withoutGroups returns a state with the first four mounts of w, the modules of w on disk but not
// loaded, and other values than those of w for all parameters and limits. The hierarchy of control
// groups is not mounted.
func withoutGroups(w Want) Have {
	have := Have{Modules: map[string]ModuleState{}, Sysctls: map[string]string{}, Rlimits: map[string]Rlimit{}, Groups: map[string]GroupState{}}
	for _, m := range w.Modules {
		have.Modules[m.Name] = ModuleState{Known: true}
	}
	for i, m := range w.Mounts {
		if i < 4 {
			have.Mounts = append(have.Mounts, m)
		}
	}
	for _, s := range w.Sysctls {
		if !strings.HasPrefix(s.Name, "net.bridge.") { // a module provides these parameters
			have.Sysctls[s.Name] = "0"
		}
	}
	for _, r := range w.Rlimits {
		have.Rlimits[r.Name] = Rlimit{r.Name, 1024, 4096}
	}
	return have
}

// apply performs the operation o on the state have, instead of the kernel. It changes only what
// Diff reads.
func apply(have *Have, o Op) {
	switch o.Verb {
	case LoadModules:
		for _, name := range o.Names {
			have.Modules[name] = ModuleState{Loaded: true, Known: true}
			if name == "br_netfilter" {
				have.Sysctls["net.bridge.bridge-nf-call-iptables"] = "0"
			}
		}
	case MountFS:
		have.Mounts = append(have.Mounts, o.Mount)
		if o.Mount.Type == "cgroup2" {
			have.Groups["/"] = GroupState{Available: slices.Clone(controllers), Files: map[string]string{}}
		}
	case Remount:
		for i := range have.Mounts {
			if have.Mounts[i].Target == o.Mount.Target {
				have.Mounts[i].Flags |= o.Mount.Flags
			}
		}
	case Share:
		have.Shared = true
	case SetSysctl:
		have.Sysctls[o.Name] = o.Value
	case SetRlimit:
		have.Rlimits[o.Rlimit.Name] = o.Rlimit
	case MakeGroup:
		have.Groups[o.Name] = GroupState{Files: map[string]string{}}
		give(have, o.Name, have.Groups[path.Dir(o.Name)].Delegated)
	case Delegate:
		state := have.Groups[o.Name]
		state.Delegated = append(slices.Clone(state.Delegated), o.Names...)
		have.Groups[o.Name] = state
		for child := range have.Groups {
			if child != "/" && path.Dir(child) == o.Name {
				give(have, child, o.Names)
			}
		}
	case SetGroup:
		state := have.Groups[o.Group]
		if _, there := state.Files[o.Name]; !there {
			panic(o.String() + ": the parent does not delegate the controller")
		}
		state.Files = maps.Clone(state.Files)
		state.Files[o.Name] = o.Value
		if bytes, err := strconv.Atoi(o.Value); err == nil && strings.HasPrefix(o.Name, "memory.") {
			state.Files[o.Name] = strconv.Itoa(bytes / page * page) // page_counter_memparse
		}
		have.Groups[o.Group] = state
	case EnterGroup:
		have.Home = o.Name
	case WriteID:
		have.MachineID = o.Value
	}
}

// The function give makes controllers available in a group, with their files. As in the kernel, the
// parent of the group must have these controllers; otherwise give panics.
func give(have *Have, group string, names []string) {
	state := have.Groups[group]
	state.Available, state.Files = append(slices.Clone(state.Available), names...), maps.Clone(state.Files)
	for _, c := range names {
		if !slices.Contains(have.Groups[path.Dir(group)].Available, c) {
			panic(group + ": the parent does not have the controller " + c)
		}
	}
	defaults := map[string]map[string]string{"cpu": {"cpu.weight": "100"}, "memory": {"memory.min": "0", cgroup.SwapMax: "max"}}
	for _, c := range names {
		maps.Copy(state.Files, defaults[c])
	}
	have.Groups[group] = state
}

// page is the page size of the kernel.
const page = 4096

func clone(h Have) Have {
	h.Modules, h.Sysctls, h.Rlimits, h.Groups = maps.Clone(h.Modules), maps.Clone(h.Sysctls), maps.Clone(h.Rlimits), maps.Clone(h.Groups)
	h.Mounts = slices.Clone(h.Mounts)
	return h
}

var (
	small  = Facts{Memory: 2 << 30, CPUs: 2, EFI: true}
	large  = Facts{Memory: 256 << 30, CPUs: 64}
	simple = Config{Pods: true, ReservedMemory: 512 << 20, MachineID: "0123456789abcdef0123456789abcdef"}
	custom = Config{Pods: true, ReservedMemory: 200 << 30, Modules: []string{"zfs", "overlay"},
		Sysctls: map[string]string{"net.core.somaxconn": "9000", "kernel.panic": "0", "net.ipv4.conf.eth0/7.rp_filter": "1"}}
)

// cases returns the machines for the golden files and for the tests of the two laws.
func cases() map[string]struct {
	have Have
	want Want
} {
	type pair = struct {
		have Have
		want Want
	}
	first := Plan(simple, small)
	done := clone(afterInit(first))
	for range 3 {
		for _, op := range Diff(done, first) {
			apply(&done, op)
		}
	}
	changed := simple
	changed.ReservedMemory = 700 << 20
	changed.Sysctls = map[string]string{"net.core.somaxconn": "9000"}
	lost := clone(done)
	lost.Mounts[1].Flags = 0
	lost.Mounts = append(lost.Mounts, mount.Mount{Source: "x", Target: "/tmp", Type: "ext4"})
	lost.Sysctls["vm.panic_on_oom"] = "1"
	unconfigured := Plan(Config{}, small)
	big := Plan(custom, large)
	// half of this memory is not a whole number of pages
	uneven := Plan(Config{Pods: true, ReservedMemory: 500_000_000}, Facts{Memory: 1_007_562_752, CPUs: 2})
	bare := afterInit(big)
	delete(bare.Modules, "zfs")
	delete(bare.Modules, "evdev")
	delete(bare.Sysctls, "kernel.hotplug")
	return map[string]pair{
		"first boot":             {afterInit(first), first},
		"first boot, no config":  {afterInit(unconfigured), unconfigured},
		"nothing to do":          {done, first},
		"configuration changed":  {done, Plan(changed, small)},
		"foreign changes":        {lost, first},
		"large, modules missing": {bare, big},
		"uneven memory":          {afterInit(uneven), uneven},
		"hierarchy not mounted":  {withoutGroups(first), first},
	}
}

func TestGoldens(t *testing.T) {
	for name, c := range cases() {
		var lines strings.Builder
		for _, op := range Diff(c.have, c.want) {
			lines.WriteString(op.String() + "\n")
		}
		golden.Assert(t, lines.String(), strings.NewReplacer(" ", "-", ",", "").Replace(name)+".golden")
	}
}

// TestAfterTheOperationsNothingIsLeft checks the first law: after the operations of a diff, the
// diff is empty. If an operation mounts the hierarchy of control groups, only the next diff can
// read the groups, so the test performs the operations of two diffs.
func TestAfterTheOperationsNothingIsLeft(t *testing.T) {
	for name, c := range cases() {
		have := clone(c.have)
		for range 2 {
			for _, op := range Diff(have, c.want) {
				apply(&have, op)
			}
		}
		if left := Diff(have, c.want); len(left) != 0 {
			t.Errorf("%s: these operations remain: %v", name, left)
		}
	}
}

// TestStoppingAnywhereConverges checks the second law: a machine that stops at any operation
// converges after its restart.
func TestStoppingAnywhereConverges(t *testing.T) {
	for name, c := range cases() {
		for stop := range Diff(c.have, c.want) {
			have := clone(c.have)
			for _, op := range Diff(have, c.want)[:stop] {
				apply(&have, op)
			}
			for range 2 {
				for _, op := range Diff(have, c.want) {
					apply(&have, op)
				}
			}
			if left := Diff(have, c.want); len(left) != 0 {
				t.Errorf("%s, stopped after %d operations: these operations remain: %v", name, stop, left)
			}
		}
	}
}

// TestOurParametersHold checks that a configuration cannot change the parameters that the kubelet
// requires (custom sets kernel.panic), and that it can set others.
func TestOurParametersHold(t *testing.T) {
	want := Plan(custom, large)
	seen := map[string]string{}
	for _, s := range want.Sysctls {
		if _, twice := seen[s.Name]; twice {
			t.Errorf("%s is set twice", s.Name)
		}
		seen[s.Name] = s.Value
	}
	// The values that the kubelet requires (--protect-kernel-defaults).
	for name, value := range map[string]string{
		"vm.overcommit_memory": "1", "vm.panic_on_oom": "0", "kernel.panic": "10", "kernel.panic_on_oops": "1",
		"kernel.keys.root_maxkeys": "1000000", "kernel.keys.root_maxbytes": "25000000",
	} {
		if seen[name] != value {
			t.Errorf("%s = %q; the kubelet requires %s", name, seen[name], value)
		}
	}
	if seen["net.core.somaxconn"] != "9000" {
		t.Error("the operator's parameter is not set")
	}
}

// TestReservationIsBounded checks the memory that is reserved for the system (at most half of the
// memory, in whole pages) and the CPU weight of the system.
func TestReservationIsBounded(t *testing.T) {
	for _, c := range []struct {
		config Config
		facts  Facts
		want   string
	}{
		{Config{}, small, "41943040"},
		{Config{ReservedMemory: 512 << 20}, small, "536870912"},
		{Config{ReservedMemory: 200 << 30}, small, "1073741824"},
		// the result is rounded down to whole pages
		{Config{ReservedMemory: 512 << 20}, Facts{Memory: 1_007_562_752}, "503775232"},
		{Config{ReservedMemory: 500_000_000}, small, "499974144"},
	} {
		groups := Plan(c.config, c.facts).Groups
		if got := groups[1].Files["memory.min"]; got != c.want {
			t.Errorf("%+v on %+v: memory.min = %s; want %s", c.config, c.facts, got, c.want)
		}
	}
	for cpus, want := range map[int]int{1: 156, 2: 316, 4: 628, 64: 10000} {
		if got := systemWeight(cpus); got != want {
			t.Errorf("weight for %d CPUs = %d; want %d", cpus, got, want)
		}
	}
}

func TestMachineID(t *testing.T) {
	a, b := MachineID([]byte("a")), MachineID([]byte("b"))
	if len(a) != 32 || a == b || a != MachineID([]byte("a")) {
		t.Errorf("%s and %s", a, b)
	}
}

// TestMinFree checks the value of vm.min_free_kbytes, in KiB, for several sizes of memory, and that
// a configuration can replace it.
func TestMinFree(t *testing.T) {
	for memory, want := range map[int64]int64{2 << 30: 16 << 10, 6 << 30: 16 << 10, 64 << 30: 32 << 10, 8 << 40: 256 << 10} {
		if got := minFree(memory); got != want {
			t.Errorf("machine with %d MiB: minFree is %d KiB, want %d", memory>>20, got, want)
		}
	}
	value := func(c Config) (found string) {
		for _, s := range planSysctls(c, Facts{Memory: 2 << 30}) {
			if s.Name == minFreeName {
				found += s.Value + " "
			}
		}
		return found
	}
	if got := value(Config{}); got != "16384 " {
		t.Errorf("by default: %q", got)
	}
	if got := value(Config{Sysctls: map[string]string{minFreeName: "99999"}}); got != "99999 " {
		t.Errorf("set by the operator: %q", got)
	}
}

// TestBlanksInSysctls checks that Diff treats two values of a parameter as equal if they differ
// only in spaces and tabs.
func TestBlanksInSysctls(t *testing.T) {
	const name = "net.ipv4.tcp_rmem"
	have := Have{Sysctls: map[string]string{name: "4096 131072 6291456"}}
	if ops := Diff(have, Want{Sysctls: []Sysctl{{Name: name, Value: " 4096\t131072  6291456"}}}); len(ops) > 0 {
		t.Errorf("%v", ops)
	}
	if ops := Diff(have, Want{Sysctls: []Sysctl{{Name: name, Value: "4096 131072 6291457"}}}); len(ops) != 1 {
		t.Errorf("another value: %v", ops)
	}
}

// TestNoSwap checks that the kernel can swap out neither the system's processes nor its files in
// memory.
func TestNoSwap(t *testing.T) {
	want := Plan(Config{Pods: true}, Facts{Memory: 2 << 30, CPUs: 2})
	i := slices.IndexFunc(want.Groups, func(g Group) bool { return g.Path == cgroup.System })
	if i < 0 || want.Groups[i].Files[cgroup.SwapMax] != "0" || !strings.HasPrefix(want.Home, cgroup.System+"/") {
		t.Errorf("the system can be swapped: %+v, home %s", want.Groups, want.Home)
	}
	for _, m := range want.Mounts {
		if m.Type == "tmpfs" && !slices.Contains(strings.Split(m.Data, ","), "noswap") {
			t.Errorf("%s can be swapped", m)
		}
	}
}
