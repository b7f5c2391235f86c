package transition

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// patchedBy returns the reference configuration before and after a patch.
func patchedBy(t *testing.T, patch string) (before, next *config.Config) {
	t.Helper()
	before, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	if patch == "" {
		patch = `{kind: Machine, spec: {}}`
	}
	text, err := config.Merge([]byte(config.Reference), []byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	// The patched configuration may be invalid. The test needs only its difference.
	next, _ = config.Parse("patched.yaml", text)
	return before, next
}

// TestCutOffChanges checks that cutOffChanges finds each kind of cut-off change, and no other
// change.
func TestCutOffChanges(t *testing.T) {
	for patch, want := range map[string]string{
		`{kind: Network, spec: {links: [{name: eth9, addresses: [10.0.0.11/24]}]}}`:         "Network.spec.links[0].name",
		`{kind: Network, spec: {links: null}}`:                                              "Network.spec.links[0].name",
		`{kind: Network, spec: {firewall: null}}`:                                           "Network.spec.firewall",
		`{kind: Network, spec: {firewall: {allow: null}}}`:                                  "Network.spec.firewall.allow[0].port",
		`{kind: Network, spec: {firewall: {allow: [{port: 50000, from: [192.0.2.0/24]}]}}}`: "Network.spec.firewall.allow[0].port",
		`{kind: Machine, metadata: {name: other}}`:                                          "Machine.metadata.name",
		`{kind: Machine, spec: {trust: {operatorCAs: []}}}`:                                 "Machine.spec.trust.operatorCAs[0]",
		`{kind: Machine, spec: {sysctls: {net.ipv6.conf.all.disable_ipv6: "1"}}}`:           `Machine.spec.sysctls["net.ipv6.conf.all.disable_ipv6"]`,
		`{kind: Machine, spec: {sysctls: {net.core.somaxconn: null}}}`:                      `Machine.spec.sysctls["net.core.somaxconn"]`,
		`{kind: Machine, spec: {kernelModules: [ip_vs]}}`:                                   "Machine.spec.kernelModules[0]",
		`{kind: Cluster, spec: {endpoint: "https://10.9.9.9:6443"}}`:                        "Cluster.spec.endpoint",
		`{kind: Cluster, spec: {controlPlanes: [10.9.9.9]}}`:                                "Cluster.spec.controlPlanes[0]",
		`{kind: Cluster, spec: {virtualAddresses: [10.9.9.9]}}`:                             "Cluster.spec.virtualAddresses[0]",
		`{kind: Machine, spec: {sysctls: {vm.swappiness: "99"}}}`:                           `Machine.spec.sysctls["vm.swappiness"]`,
		`{kind: Machine, spec: {sysctls: {fs.file-max: "70000"}}}`:                          `Machine.spec.sysctls["fs.file-max"]`,
		`{kind: Machine, spec: {reserved: {memory: 900MiB}}}`:                               "",
		`{kind: Machine, spec: {logging: null}}`:                                            "",
		`{kind: Network, spec: {ntp: {servers: [192.0.2.1]}}}`:                              "",
		`{kind: Network, spec: {dns: {servers: [192.0.2.1]}}}`:                              "",
		`{kind: Cluster, spec: {kubernetes: {maxPods: 42}}}`:                                "",
		"": "",
	} {
		before, next := patchedBy(t, patch)
		got := ""
		if lines := cutOffChanges(before, next); len(lines) > 0 {
			got, _, _ = strings.Cut(lines[0], ": ")
		}
		if got != want && (want == "" || !strings.HasPrefix(got, want)) {
			t.Errorf("%s: %q, want %q", patch, got, want)
		}
	}
	without, err := config.Parse("a.yaml", []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n"))
	with, _ := config.Parse("b.yaml", []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: a}\nspec: {role: worker}\n---\n"+
		"apiVersion: orlop.dev/v1alpha1\nkind: Network\nmetadata: {name: a}\nspec: {firewall: {}}\n"))
	for _, pair := range [][2]*config.Config{{without, with}, {with, without}} {
		if lines := cutOffChanges(pair[0], pair[1]); err != nil || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "Network.spec.firewall: ") }) {
			t.Errorf("a firewall without rules of its own: %v, %v", lines, err)
		}
	}
	for line, want := range map[string]bool{
		"Cluster.spec.pki.client.cert: CN=a → CN=b":             true,
		"Cluster.spec.pki.client.key: (changed)":                true,
		"Cluster.spec.pki.machine.cert: CN=a → CN=b":            true,
		"Cluster.spec.pki.accepted.machine[0]: (none) → CN=b":   true,
		"Cluster.spec.pki.accepted.client[1]: CN=b → (none)":    true,
		"Cluster.spec.pki.accepted.etcd[0]: CN=b → (none)":      false,
		"Cluster.spec.pki.etcd.cert: CN=a → CN=b":               false,
		"Cluster.spec.pki.clientele: a → b":                     false, // row Cluster.spec.pki
		`Machine.spec.sysctls["netfilter.x"]: 1 → 2`:            true,
		`Machine.spec.node.labels["a"]: 1 → Network.spec.links`: false,
		`Addon["a"].spec.x: 1 → 2`:                              false,
		"Cluster.spec.unknown: 1 → 2":                           true,
	} {
		if got := judge(line).cuts; got != want {
			t.Errorf("%s: cuts off the caller: %v", line, got)
		}
	}
	if lines := cutOffChanges(nil, config.New("n1", config.RoleWorker)); lines != nil {
		t.Errorf("changes of a first configuration that cut off the caller: %q, want none", lines)
	}
}

// TestPlanTrial checks which requests start a trial and its duration. It also checks the reason if
// a change that can cut off its caller has no trial.
func TestPlanTrial(t *testing.T) {
	plain := func(change func(*config.Config)) *config.Config {
		c := config.New("n1", config.RoleControlPlane)
		c.Network.Spec.Links = []config.Link{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}
		if change != nil {
			change(c)
		}
		return c
	}
	moved := plain(func(c *config.Config) { c.Network.Spec.Links[0].Name = "eth1" })
	renewed := plain(func(c *config.Config) { c.Machine.Spec.Upgrade.Deadline = config.Duration(time.Hour) })
	tuned := plain(func(c *config.Config) { c.Machine.Spec.Sysctls = map[string]string{"vm.swappiness": "1"} })
	first := plain(func(c *config.Config) { c.Network.Spec.Links[0].Name, c.Cluster = "eth1", &config.Cluster{} })
	in := func(external bool, link string) *config.Config {
		return plain(func(c *config.Config) {
			c.Network.Spec.Links[0].Name, c.Cluster = link, &config.Cluster{}
			if external {
				c.Cluster.Spec.External = []config.ExternalComponent{config.PartNetwork}
			}
		})
	}
	for name, c := range map[string]struct {
		base, next *config.Config
		request    *api.ApplyRequest
		length     time.Duration
		afterBoot  bool
		never      string // start of the reason why there is no trial
		warnings   int
	}{
		"auto":                         {base: plain(nil), next: moved, length: time.Minute, warnings: 2},
		"no reboot":                    {base: plain(nil), next: moved, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_NO_REBOOT}, length: time.Minute, warnings: 2},
		"dry run":                      {base: plain(nil), next: moved, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_DRY_RUN}, length: time.Minute, warnings: 2},
		"a requested duration":         {base: plain(nil), next: moved, request: &api.ApplyRequest{TrialDuration: durationpb.New(20 * time.Second)}, length: 20 * time.Second, warnings: 2},
		"harmless":                     {base: plain(nil), next: renewed},
		"the same":                     {base: plain(nil), next: plain(nil)},
		"harmless, mode try":           {base: plain(nil), next: renewed, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_TRY}, length: 2 * time.Minute},
		"no trial requested":           {base: plain(nil), next: moved, request: &api.ApplyRequest{NoTrial: true}, never: "the caller requested no trial", warnings: 2},
		"staged":                       {base: plain(nil), next: moved, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED}, never: "no client confirms", warnings: 2},
		"staged, harmless":             {base: plain(nil), next: renewed, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED}},
		"a kernel parameter":           {base: plain(nil), next: tuned, length: time.Minute, warnings: 2},
		"reboot":                       {base: plain(nil), next: moved, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT}, length: 5 * time.Minute, afterBoot: true, warnings: 2},
		"reboot, harmless":             {base: plain(nil), next: renewed, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT}},
		"reboot, no trial requested":   {base: plain(nil), next: moved, request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT, NoTrial: true}, never: "the caller requested no trial", warnings: 2},
		"the first configuration":      {next: moved},
		"the first cluster":            {base: plain(nil), next: first, never: "the first Cluster document", warnings: 2},
		"a change that needs a reboot": {base: in(false, "eth0"), next: in(true, "eth1"), length: 5 * time.Minute, afterBoot: true, warnings: 2},
		"harmless, but needs a reboot": {base: in(false, "eth0"), next: in(true, "eth0")},
		"in a cluster":                 {base: in(false, "eth0"), next: in(false, "eth1"), length: time.Minute, warnings: 2},
	} {
		if c.request == nil {
			c.request = &api.ApplyRequest{}
		}
		p := PlanTrial(c.base, c.next, c.request)
		if p.Duration != c.length || p.AfterBoot != c.afterBoot || !strings.HasPrefix(p.noTrial, c.never) || (p.noTrial == "") != (c.never == "") || len(p.warnings()) != c.warnings {
			t.Errorf("%s: the plan is %+v, with the warnings %q", name, p, p.warnings())
		}
	}
}

// TestMissingLinks checks that missing links are rejected with a list of the present links. Links
// of the active configuration are not rejected.
func TestMissingLinks(t *testing.T) {
	next := config.New("n1", config.RoleWorker)
	next.Network.Spec.Links = []config.Link{{Name: "eth0"}, {Name: "eth9"}, {MAC: "02:00:00:00:00:01"}}
	for name, c := range map[string]struct {
		missing, there, known []string
		want                  string
	}{
		"no link is missing":          {nil, []string{"eth0"}, nil, ""},
		"by name":                     {[]string{"eth9"}, []string{"eth0", "eth1"}, nil, "Network.spec.links[1]: this machine has no link eth9; it has eth0, eth1"},
		"by MAC":                      {[]string{"02:00:00:00:00:01"}, []string{"eth0"}, nil, "Network.spec.links[2]: this machine has no link 02:00:00:00:00:01; it has eth0"},
		"in the active configuration": {[]string{"eth9"}, []string{"eth0"}, []string{"eth9"}, ""},
		"no link":                     {[]string{"eth0"}, nil, nil, "Network.spec.links[0]: this machine has no link eth0; it has no Ethernet link"},
	} {
		if got := strings.Join(Hardware{MissingLinks: c.missing, PresentLinks: c.there, KnownLinks: c.known}.Missing(next), "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTakenLinks checks that a new link is rejected if another link already has its name.
func TestTakenLinks(t *testing.T) {
	next := config.New("n1", config.RoleWorker)
	next.Network.Spec.Links = []config.Link{{Name: "eth0"}, {Name: "dummy0", Dummy: true}, {Name: "dummy1", Dummy: true}}
	want := "Network.spec.links[1].name: this machine has another link dummy0, which the system did not create; choose another name"
	if got := strings.Join(Hardware{TakenLinks: []string{"dummy0"}}.Missing(next), "; "); got != want {
		t.Errorf("Missing returns %q, want %q", got, want)
	}
}

// TestEveryFieldIsJudged checks that a row of the table covers every field of the documents. It
// also checks that each row is for an existing field, has a reason, and occurs once.
func TestEveryFieldIsJudged(t *testing.T) {
	fields := map[string]bool{"Addon": true, "Volume": true, "Network.metadata": true, "Cluster.metadata": true, "Machine.metadata.name": true}
	for of, kind := range map[string]reflect.Type{
		"Network.spec.": reflect.TypeFor[config.NetworkSpec](), "Machine.spec.": reflect.TypeFor[config.MachineSpec](), "Cluster.spec.": reflect.TypeFor[config.ClusterSpec](),
		"Cluster.spec.pki.": reflect.TypeFor[config.PKI](), "Cluster.spec.pki.accepted.": reflect.TypeFor[config.Accepted](),
	} {
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("yaml"), ",")
			fields[of+name] = true
		}
	}
	for field := range fields {
		if judge(field+": a → b") == unjudged {
			t.Errorf("%s: no row says whether a change can cut off its caller", field)
		}
	}
	seen := map[string]bool{}
	for _, row := range judgments {
		if !fields[row.field] || row.reason == "" || seen[row.field] {
			t.Errorf("row %s: the field does not exist, the reason is missing, or the row occurs twice", row.field)
		}
		seen[row.field] = true
	}
}

// TestUnconfirmed checks that a change that can cut off its caller is rejected if it has no trial,
// with the reason and the remedies. It is accepted if the caller requested no trial.
func TestUnconfirmed(t *testing.T) {
	machine := func(change func(*config.Config)) *config.Config {
		c := config.New("n1", config.RoleWorker)
		if change != nil {
			change(c)
		}
		return c
	}
	tuned := machine(func(c *config.Config) { c.Machine.Spec.Sysctls = map[string]string{"vm.swappiness": "1"} })
	cluster := machine(func(c *config.Config) { c.Cluster = &config.Cluster{} })
	both := machine(func(c *config.Config) {
		c.Machine.Spec.Sysctls, c.Cluster = tuned.Machine.Spec.Sysctls, &config.Cluster{}
	})
	const staged = `Machine.spec.sysctls["vm.swappiness"]: the change can cut you off, and has no trial: no client confirms a staged configuration at the next boot; ` +
		"use --mode reboot, which confirms it after the boot, or --no-trial, which applies it unconfirmed"
	const first = `Machine.spec.sysctls["vm.swappiness"]: the change can cut you off, and has no trial: the first Cluster document cannot be on trial: its data would stay; ` +
		"apply the other documents first and then the Cluster document, or use --no-trial"
	for name, c := range map[string]struct {
		next    *config.Config
		request *api.ApplyRequest
		want    string
	}{
		"staged":                                        {tuned, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED}, staged},
		"staged, no trial requested":                    {tuned, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED, NoTrial: true}, ""},
		"staged, harmless":                              {machine(nil), &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED}, ""},
		"reboot":                                        {tuned, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT}, ""},
		"a short trial after the boot":                  {tuned, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT, TrialDuration: durationpb.New(20 * time.Second)}, "a trial of 20s is too short: it begins with a boot, and lasts at least 1m0s; use a longer --try-for"},
		"a long trial after the boot":                   {tuned, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT, TrialDuration: durationpb.New(2 * time.Hour)}, "a trial of 2h0m0s is not between 1m0s and 1h0m0s"},
		"the first cluster":                             {cluster, &api.ApplyRequest{}, ""},
		"a cluster and a parameter":                     {both, &api.ApplyRequest{}, first},
		"a cluster and a parameter, with reboot":        {both, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_REBOOT}, first},
		"a cluster and a parameter, no trial requested": {both, &api.ApplyRequest{NoTrial: true}, ""},
		"a cluster and a parameter, dry run":            {both, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_DRY_RUN}, first},
		"a cluster, staged":                             {cluster, &api.ApplyRequest{Mode: api.ApplyRequest_MODE_STAGED}, ""},
	} {
		f := Facts{Request: c.request, Trial: PlanTrial(machine(nil), c.next, c.request)}
		got := ""
		if problems := checkMode(machine(nil), c.next, f); len(problems) > 0 {
			got = strings.TrimPrefix(problems.Error(), config.Refused+" ")
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// TestNeedsReboot checks which reverts need a reboot, and which kernel parameters return to their
// former values without a reboot.
func TestNeedsReboot(t *testing.T) {
	with := func(change func(*config.Config)) *config.Config {
		c := config.New("n1", config.RoleWorker)
		change(c)
		return c
	}
	sysctls := func(pairs ...string) *config.Config {
		return with(func(c *config.Config) {
			c.Machine.Spec.Sysctls = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				c.Machine.Spec.Sysctls[pairs[i]] = pairs[i+1]
			}
		})
	}
	cluster := func(external ...config.ExternalComponent) *config.Config {
		return with(func(c *config.Config) {
			c.Cluster = &config.Cluster{Spec: config.ClusterSpec{External: external}}
		})
	}
	module := with(func(c *config.Config) { c.Machine.Spec.KernelModules = []string{"sctp"} })
	for _, c := range []struct {
		name        string
		tried, next *config.Config
		reboot      bool
		restored    string
	}{
		{"no parameter", sysctls(), sysctls(), false, ""},
		{"removed", sysctls("vm.swappiness", "1", "fs.file-max", "70000"), sysctls(), false, "fs.file-max vm.swappiness"},
		{"changed", sysctls("vm.swappiness", "1"), sysctls("vm.swappiness", "2"), false, "vm.swappiness"},
		{"unchanged", sysctls("vm.swappiness", "1"), sysctls("vm.swappiness", "1"), false, ""},
		{"added", sysctls(), sysctls("vm.swappiness", "1"), false, ""},
		{"a parameter of the network", sysctls("net.core.somaxconn", "1"), sysctls(), true, "net.core.somaxconn"},
		{"a module", module, sysctls(), true, ""},
		{"the pod network", cluster(config.PartNetwork), cluster(), true, ""},
		{"the service proxy", cluster(config.PartProxy), cluster(), false, ""},
	} {
		if got := NeedsReboot(c.tried, c.next); got != c.reboot {
			t.Errorf("%s: needs a reboot: %v", c.name, got)
		}
		if got := strings.Join(RestoredSysctls([]*config.Config{c.tried, c.tried}, c.next), " "); got != c.restored {
			t.Errorf("%s: restored %q, want %q", c.name, got, c.restored)
		}
	}
}

// TestReplacesPodNetwork checks that a change between the built-in and an external pod network
// counts as a replacement, and that other external components do not matter.
func TestReplacesPodNetwork(t *testing.T) {
	with := func(parts ...config.ExternalComponent) *config.Config {
		return &config.Config{Cluster: &config.Cluster{Spec: config.ClusterSpec{External: parts}}}
	}
	for _, c := range []struct {
		name         string
		before, next *config.Config
		want         bool
	}{
		{"the first configuration", nil, with(config.PartNetwork), false},
		{"the first cluster", &config.Config{}, with(config.PartNetwork), false},
		{"from built-in to external", with(), with(config.PartNetwork), true},
		{"from external to built-in", with(config.PartNetwork, config.PartDNS), with(config.PartDNS), true},
		{"another external component", with(config.PartNetwork), with(config.PartDNS, config.PartNetwork), false},
	} {
		if got := ReplacesPodNetwork(c.before, c.next); got != c.want {
			t.Errorf("%s: ReplacesPodNetwork returns %t", c.name, got)
		}
	}
}
