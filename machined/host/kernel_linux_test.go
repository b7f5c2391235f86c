package host

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// TestUnderTheProductKernel performs all operations in a virtual machine with the product kernel.
// It checks that no operations remain, that the operations can be repeated, and that /proc and /sys
// have the desired values. See vm/kerneltest:
//
//	go test -exec 'qemu kernel-test -kernel DIR -module bridge …' ./machined/host
func TestUnderTheProductKernel(t *testing.T) {
	if os.Getenv("ORLOP_KERNEL_TEST") == "" {
		t.Skip("changes the whole machine; runs under vm/kerneltest only")
	}
	// The module index is empty: no modules are on disk, so only the loaded modules are known.
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "modules.dep"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	k := NewKernel(func() (*kmod.Index, error) { return kmod.Read(empty) })
	facts, err := k.ReadFacts()
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Pods: true, ServiceProxy: true, ReservedMemory: 256<<20 + 2048, MachineID: "0123456789abcdef0123456789abcdef", Sysctls: map[string]string{"net.core.somaxconn": "9000"}}
	want := Plan(config, facts)
	have, err := k.Read(want)
	if err != nil {
		t.Fatal(err)
	}
	loop := reconcile.Config{Name: "host", KeepGoing: true, Diff: k.Diff(func() Want { return Plan(config, facts) }),
		Report: func(r reconcile.Report) { t.Logf("%8v %s", r.Took.Round(10000), r) }}
	if err := reconcile.Converge(t.Context(), loop); err != nil {
		t.Fatal(err)
	}
	if ops, err := loop.Diff(t.Context()); len(ops) != 0 || err != nil {
		t.Fatalf("operations remain: %q, %v", reconcile.Print(ops), err)
	}
	// Each operation can be repeated, except a mount: a second mount would be stacked on the first.
	// Diff prevents this.
	for _, op := range Diff(have, want) {
		if op.Verb == MountFS {
			continue
		}
		if err := k.do(op); err != nil {
			t.Errorf("repeated: %s: %v", op, err)
		}
	}
	if ops, err := loop.Diff(t.Context()); len(ops) != 0 || err != nil {
		t.Errorf("operations remain after the repetition: %q, %v", reconcile.Print(ops), err)
	}
	for file, part := range map[string]string{
		"/proc/self/cgroup":                "0::/orlop/machined",
		"/sys/fs/cgroup/orlop/memory.min":  "268435456",
		"/sys/fs/cgroup/orlop/cgroup.type": "domain",
		"/proc/sys/kernel/panic":           "10",
		"/proc/sys/net/core/somaxconn":     "9000",
		"/proc/self/limits":                "Max open files            1024                 524288",

		"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "86400\n",
		"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait":  "3600\n",
	} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), part) {
			t.Errorf("%s: %q, %v; want %q", file, text, err, part)
		}
	}
	pairReturns(t, k, facts, config)
	// After a change of the configuration, the diff contains only the operation for this change.
	config.ReservedMemory = 300 << 20
	ops, err := loop.Diff(t.Context())
	if err != nil || len(ops) != 1 || ops[0].String() != "set memory.min = 314572800 in control group /orlop (was 268435456)" {
		t.Errorf("%q, %v", reconcile.Print(ops), err)
	}
}

// pairReturns sets vm.dirty_bytes by a configuration and removes it from the configuration. It
// checks that vm.dirty_bytes and vm.dirty_ratio, two parameters for the same setting, then have
// their former values. The kernel sets one of them to 0 when the other is written, and rejects 0
// for vm.dirty_bytes.
func pairReturns(t *testing.T, k *Kernel, facts Facts, config Config) {
	t.Helper()
	values := func() (pair [2]string) {
		for i, name := range []string{"vm.dirty_bytes", "vm.dirty_ratio"} {
			value, there, err := k.readSysctl(name)
			if err != nil || !there {
				t.Fatalf("%s: %v, %v", name, there, err)
			}
			pair[i] = value
		}
		return pair
	}
	converges := func(c Config) {
		t.Helper()
		plan := func() Want {
			c.PreviousSysctls = k.PreviousSysctls()
			return Plan(c, facts)
		}
		loop := reconcile.Config{Name: "host", KeepGoing: true, Diff: k.Diff(plan), Report: func(reconcile.Report) {}}
		if err := reconcile.Converge(t.Context(), loop); err != nil {
			t.Fatal(err)
		}
		if ops, err := loop.Diff(t.Context()); len(ops) != 0 || err != nil {
			t.Errorf("operations remain: %q, %v", reconcile.Print(ops), err)
		}
	}
	before, tried := values(), config
	tried.Sysctls = maps.Clone(config.Sysctls)
	tried.Sysctls["vm.dirty_bytes"] = "104857600"
	converges(tried)
	if got := values(); got != [2]string{"104857600", "0"} {
		t.Errorf("after the change of vm.dirty_bytes, the two parameters are %q", got)
	}
	converges(config)
	if got := values(); got != before {
		t.Errorf("after the removal from the configuration, the two parameters are %q, want %q", got, before)
	}
}
