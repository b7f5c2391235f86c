package host

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
)

// converge performs the operations of Diff for kernel parameters, as machined does, and returns
// their descriptions. It omits parameters that the fake kernel does not have.
func converge(t *testing.T, k *Kernel, c Config) (lines []string) {
	t.Helper()
	c.PreviousSysctls = k.PreviousSysctls()
	want := planSysctls(c, small)
	have := Have{Sysctls: map[string]string{}}
	for _, s := range want {
		if value, there, err := k.readSysctl(s.Name); err != nil {
			t.Fatal(err)
		} else if there {
			have.Sysctls[s.Name] = value
		}
	}
	for _, op := range Diff(have, Want{Sysctls: want}) {
		if op.Old == "missing" {
			continue
		}
		if err := k.do(op); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, op.String())
	}
	return lines
}

// TestFormerValue configures a parameter with two values, one after the other, and then removes it
// from the configuration. It checks that the parameter then has the value from before the first
// change, and that no operation remains.
func TestFormerValue(t *testing.T) {
	const file = "sys/net/core/somaxconn"
	k := fakeKernel(t, map[string]string{"proc/meminfo": "MemTotal: 2000000 kB\n", "proc/" + file: "4096\n", "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n"})
	read := func() string {
		text, err := os.ReadFile(filepath.Join(k.proc, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	with := func(value string) Config {
		return Config{Sysctls: map[string]string{"net.core.somaxconn": value, "net.ipv4.tcp_rmem": "4096 131072 999"}}
	}
	converge(t, k, with("8192"))
	converge(t, k, with("1000"))
	if got := read(); got != "1000" {
		t.Fatalf("the configured parameter has the value %q, want 1000", got)
	}
	lines := converge(t, k, Config{})
	want := []string{`restore kernel parameter net.core.somaxconn to "4096" (was "1000")`, `restore kernel parameter net.ipv4.tcp_rmem to "4096 131072 6291456" (was "4096 131072 999")`}
	if got := read(); got != "4096" || !reflect.DeepEqual(lines, want) {
		t.Errorf("after the removal, the value is %q, set by the operations %q; want 4096, by %q", got, lines, want)
	}
	if lines := converge(t, k, Config{}); lines != nil {
		t.Errorf("after the removal, operations remain: %q", lines)
	}
	converge(t, k, with("8192"))
	if got := read(); got != "8192" {
		t.Errorf("the parameter is configured again, and its value is %q, want 8192", got)
	}
}

// TestSameValue checks whether a value that the kernel returns (read) is equal to a configured
// value (set). The same number or list of numbers can have several notations.
func TestSameValue(t *testing.T) {
	for _, c := range []struct {
		read, set string
		same      bool
	}{
		{"16", "0x10", true}, {"16", "020", true}, {"16", "16", true}, {"16", "17", false}, {"1 2", "1  2", true}, {"1 2", "1\t2", true},
		{"1", "1 2", false}, {"1", "+1", true}, {"bbr", "bbr", true}, {"bbr", "cubic", false}, {"1000", "1_000", false}, {"2", "0b10", false}, {"", "", true},
		{"1,5-7", "1,5-7", true}, {"1,5-7", "7,6,5,1", true}, {"5-9", "5-7,6-9", true}, {"5-9", "5-7,9", false}, {"5", "5,5", true}, {"5", "5,", false}, {"5-6", "6-5", false}, {"-1", "1", false}, {"", "5", false},
	} {
		if got := sameValue(c.read, c.set); got != c.same {
			t.Errorf("%q read, %q set: %v", c.read, c.set, got)
		}
	}
}

// TestUnusable checks that Unusable reports modules and parameters that this kernel does not have
// or cannot set. It does not report those that the active configuration has, too.
func TestUnusable(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"proc/sys/net/core/somaxconn": "128\n", "proc/sys/vm/compact_memory": "", "proc/sys/kernel/version": "x\n", "sys/module/loaded/uevent": "",
	})
	for name, mode := range map[string]os.FileMode{"vm/compact_memory": 0o200, "kernel/version": 0o444} {
		if err := os.Chmod(filepath.Join(k.proc, "sys", name), mode); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte("kernel/present.ko:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	k.modules = func() (*kmod.Index, error) { return kmod.Read(dir) }
	set := func(name string) map[string]string { return map[string]string{name: "1"} }
	for name, c := range map[string]struct {
		before, next Config
		want         string
	}{
		"usable":                       {next: Config{Sysctls: set("net.core.somaxconn"), Modules: []string{"present", "loaded"}}},
		"no such module":               {next: Config{Modules: []string{"present", "iscsi_tcp"}}, want: "kernelModules[1]: this system has no module iscsi_tcp"},
		"no such parameter":            {next: Config{Sysctls: set("vm.swapiness")}, want: `sysctls["vm.swapiness"]: this kernel has no such parameter`},
		"parameter of a module":        {next: Config{Sysctls: set("net.present.x"), Modules: []string{"present"}}},
		"parameter of no module":       {next: Config{Sysctls: set("vm.swapiness"), Modules: []string{"present"}}, want: `sysctls["vm.swapiness"]: this kernel has no such parameter`},
		"parameter of a loaded module": {next: Config{Sysctls: set("net.loaded.x"), Modules: []string{"loaded"}}, want: `sysctls["net.loaded.x"]: this kernel has no such parameter`},
		"in the active configuration":  {before: Config{Sysctls: set("vm.swapiness"), Modules: []string{"gone"}}, next: Config{Sysctls: set("vm.swapiness"), Modules: []string{"gone"}}},
		"group of parameters":          {next: Config{Sysctls: set("net.core")}, want: `sysctls["net.core"]: this is a group of parameters, not a parameter`},
		"write-only parameter":         {next: Config{Sysctls: set("vm.compact_memory")}, want: `sysctls["vm.compact_memory"]: this parameter triggers an action and has no value`},
		"read-only parameter":          {next: Config{Sysctls: set("kernel.version")}, want: `sysctls["kernel.version"]: this kernel makes it read-only`},
	} {
		lines, err := k.Unusable(c.before, c.next)
		if got := strings.Join(lines, "; "); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// TestLeftover checks that LeftoverModules returns the modules that machined has loaded and that
// the configuration does not name any more.
func TestLeftover(t *testing.T) {
	k := fakeKernel(t, map[string]string{"sys/module/ip_vs/uevent": "", "sys/module/other_module/uevent": ""})
	k.recordLoaded([]string{"ip-vs", "other_module"})
	for want, modules := range map[string][]string{"": {"ip_vs", "other-module"}, "ip-vs": {"other_module"}, "ip-vs other_module": nil} {
		left, err := k.LeftoverModules(Config{Modules: modules})
		if got := strings.Join(left, " "); err != nil || got != want {
			t.Errorf("with %q: %q, %v; want %q", modules, got, err, want)
		}
	}
}
