package host

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
)

// planned returns the value of a parameter in a plan, and true if this is a former value that the
// plan restores. It returns "" if the plan does not contain the parameter.
func planned(c Config, f Facts, name string) (value string, restore bool) {
	for _, s := range planSysctls(c, f) {
		if s.Name == name {
			return s.Value, s.Restore
		}
	}
	return "", false
}

// TestConntrack checks the parameters of connection tracking in a plan. They have the values of
// kube-proxy or of the operator, and the size of the hash table (its buckets) matches the maximum.
// With an external service proxy, the plan contains only those that the operator sets.
func TestConntrack(t *testing.T) {
	names := []string{conntrackMax, conntrackBuckets, conntrackEstablished, conntrackCloseWait, "net.nf_conntrack_max"}
	cluster := func(pairs ...string) Config {
		c := Config{Pods: true, ServiceProxy: true, Sysctls: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			c.Sysctls[pairs[i]] = pairs[i+1]
		}
		return c
	}
	external := cluster(conntrackMax, "9000")
	external.ServiceProxy = false
	for name, c := range map[string]struct {
		config Config
		cpus   int
		memory int64
		want   string // the values in the order of names; "-": not in the plan
	}{
		"little memory":                           {cluster(), 2, 2 << 30, "131072 - 86400 3600 -"},
		"much memory":                             {cluster(), 2, 8 << 30, "262144 - 86400 3600 -"},
		"16 processors":                           {cluster(), 16, 8 << 30, "524288 - 86400 3600 -"},
		"16 processors, little memory":            {cluster(), 16, 2 << 30, "524288 131072 86400 3600 -"},
		"500 processors":                          {cluster(), 500, 64 << 30, "1048576 - 86400 3600 -"},
		"maximum of the operator":                 {cluster(conntrackMax, "2000000", conntrackEstablished, "600"), 2, 8 << 30, "2000000 500224 600 3600 -"},
		"low maximum of the operator":             {cluster(conntrackMax, "9000"), 2, 8 << 30, "9000 - 86400 3600 -"},
		"maximum by its other name":               {cluster("net.nf_conntrack_max", "2000000"), 2, 8 << 30, "- 500224 86400 3600 2000000"},
		"maximum and buckets of the operator":     {cluster(conntrackMax, "2000000", conntrackBuckets, "1048576"), 2, 8 << 30, "2000000 1048576 86400 3600 -"},
		"maximum 0, no limit":                     {cluster(conntrackMax, "0"), 2, 8 << 30, "0 - 86400 3600 -"},
		"maximum for more than the memory":        {cluster(conntrackMax, "2147483647"), 2, 2 << 30, "2147483647 2097152 86400 3600 -"},
		"buckets, rounded up to a whole page":     {cluster(conntrackBuckets, "70000"), 2, 2 << 30, "131072 70144 86400 3600 -"},
		"buckets in hexadecimal":                  {cluster(conntrackBuckets, " 0x12000"), 2, 2 << 30, "131072 73728 86400 3600 -"},
		"buckets, not a number":                   {cluster(conntrackBuckets, "many"), 2, 2 << 30, "131072 many 86400 3600 -"},
		"enough buckets by default":               {cluster(conntrackMax, "29700"), 2, 900 << 20, "29700 - 86400 3600 -"},
		"too few buckets by default":              {cluster(conntrackMax, "30800"), 2, 900 << 20, "30800 8192 86400 3600 -"},
		"no cluster":                              {Config{}, 2, 8 << 30, "- - - - -"},
		"external proxy":                          {Config{Pods: true}, 2, 8 << 30, "- - - - -"},
		"external proxy, maximum of the operator": {external, 2, 8 << 30, "9000 - - - -"},
	} {
		var got []string
		for _, parameter := range names {
			value, _ := planned(c.config, Facts{Memory: c.memory, CPUs: c.cpus}, parameter)
			if value == "" {
				value = "-"
			}
			got = append(got, value)
		}
		if have := strings.Join(got, " "); have != c.want {
			t.Errorf("%s: %s, want %s", name, have, c.want)
		}
	}
}

// TestRemoved checks the value that a parameter gets after its removal from the configuration: the
// value that the system sets, or else its value from before the configuration.
func TestRemoved(t *testing.T) {
	previous := map[string]string{
		conntrackEstablished: "432000", "net.nf_conntrack_max": "65536", minFreeName: "45056", "vm.swappiness": "60",
		"vm.dirty_bytes": "0", "vm.dirty_ratio": "20", "vm.dirty_background_bytes": "4096", "vm.dirty_background_ratio": "0",
	}
	for _, c := range []struct {
		name, value string
		restore     bool
	}{
		{conntrackEstablished, "86400", false}, // the value of the system
		{conntrackMax, "131072", false},
		{"net.nf_conntrack_max", "", false}, // the other name of conntrackMax
		{minFreeName, "16384", false},
		{"vm.swappiness", "60", true},
		{"vm.dirty_bytes", "", false}, // the kernel sets it to 0 when vm.dirty_ratio is restored
		{"vm.dirty_ratio", "20", true},
		{"vm.dirty_background_bytes", "4096", true},
		{"vm.dirty_background_ratio", "", false},
	} {
		value, restore := planned(Config{Pods: true, ServiceProxy: true, PreviousSysctls: previous}, small, c.name)
		if value != c.value || restore != c.restore {
			t.Errorf("%s gets the value %q (restored: %v), want %q (%v)", c.name, value, restore, c.value, c.restore)
		}
	}
	// A parameter is not restored if the other parameter of its pair is configured, or if an
	// external service proxy sets the parameter.
	for name, c := range map[string]Config{
		"vm.dirty_ratio":     {PreviousSysctls: previous, Sysctls: map[string]string{"vm.dirty_bytes": "100000000"}},
		"vm.dirty_bytes":     {PreviousSysctls: previous, Sysctls: map[string]string{"vm.dirty_ratio": "30"}},
		conntrackEstablished: {PreviousSysctls: previous, Pods: true},
	} {
		if value, _ := planned(c, small, name); value != "" {
			t.Errorf("%s gets the value %q", name, value)
		}
	}
}

// TestAlternatives configures each parameter of a pair and then removes it, on a fake kernel. This
// kernel sets the other parameter of the pair to 0, and rejects 0 for a number of bytes. After the
// removal, both parameters must have their previous values.
func TestAlternatives(t *testing.T) {
	k := fakeKernel(t, map[string]string{"proc/meminfo": "MemTotal: 2000000 kB\n", "proc/sys/vm/dirty_bytes": "0\n", "proc/sys/vm/dirty_ratio": "20\n"})
	set := func(c Config) {
		t.Helper()
		for range 2 {
			c.PreviousSysctls = k.PreviousSysctls()
			have := Have{Sysctls: map[string]string{}}
			want := planSysctls(c, small)
			for _, name := range []string{"vm.dirty_bytes", "vm.dirty_ratio"} {
				have.Sysctls[name], _, _ = k.readSysctl(name)
			}
			for _, op := range Diff(have, Want{Sysctls: want}) {
				other := sysctl.Alternative(op.Name)
				if other == "" {
					continue
				}
				if op.Name == "vm.dirty_bytes" && op.Value == "0" {
					t.Errorf("the kernel rejects: %s", op)
					continue
				}
				if err := k.do(op); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(k.proc, "sys/vm", strings.TrimPrefix(other, "vm.")), []byte("0\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, step := range []struct {
		sysctls      map[string]string
		bytes, ratio string
	}{
		{nil, "0", "20"},
		{map[string]string{"vm.dirty_bytes": "100000000"}, "100000000", "0"},
		{map[string]string{"vm.dirty_ratio": "30"}, "0", "30"},
		{nil, "0", "20"},
		{map[string]string{"vm.dirty_bytes": "100000000"}, "100000000", "0"},
		{nil, "0", "20"},
	} {
		set(Config{Sysctls: step.sysctls})
		have := map[string]string{}
		for _, name := range []string{"vm.dirty_bytes", "vm.dirty_ratio"} {
			have[name], _, _ = k.readSysctl(name)
		}
		if want := map[string]string{"vm.dirty_bytes": step.bytes, "vm.dirty_ratio": step.ratio}; !maps.Equal(have, want) {
			t.Errorf("with %v: %v, want %v", step.sysctls, have, want)
		}
	}
}

// TestDifferentSysctls checks that DifferentSysctls returns the parameters that do not have their
// former values after a trial. It also returns the other parameter of a pair for the same setting.
func TestDifferentSysctls(t *testing.T) {
	k := fakeKernel(t, map[string]string{
		"proc/meminfo": "MemTotal: 2000000 kB\n", "proc/sys/vm/swappiness": "60\n", "proc/sys/vm/dirty_bytes": "0\n", "proc/sys/vm/dirty_ratio": "20\n", "proc/sys/vm/page-cluster": "3\n",
	})
	tried := Config{Sysctls: map[string]string{"vm.swappiness": "7", "vm.dirty_bytes": "100000000", "vm.page-cluster": "4"}}
	converge(t, k, tried)
	former := Config{PreviousSysctls: k.PreviousSysctls()}
	lines, err := k.DifferentSysctls(former, small, []string{"vm.swappiness", "vm.dirty_bytes", "vm.missing"})
	if got := strings.Join(lines, "; "); err != nil || got != `vm.swappiness is "7" instead of "60"` {
		t.Errorf("%q, %v", got, err)
	}
	// the kernel sets vm.dirty_ratio to 0 when vm.dirty_bytes is set
	if err := os.WriteFile(filepath.Join(k.proc, "sys/vm/dirty_ratio"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, err = k.DifferentSysctls(former, small, []string{"vm.dirty_bytes"})
	if got := strings.Join(lines, "; "); err != nil || got != `vm.dirty_ratio is "0" instead of "20"` {
		t.Errorf("the other parameter of the pair: %q, %v", got, err)
	}
	converge(t, k, former)
	if lines, err := k.DifferentSysctls(former, small, []string{"vm.swappiness", "vm.dirty_bytes", "vm.page-cluster"}); err != nil || len(lines) != 0 {
		t.Errorf("after the revert: %q, %v", lines, err)
	}
}
