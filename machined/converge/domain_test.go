package converge

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// testReconciler returns a reconciler with domains that do not change the kernel of the test. The
// control groups of its services are in a directory without a cgroup file system, so no process
// starts.
func testReconciler(t *testing.T) *Reconciler {
	t.Helper()
	services := supervise.NewManager(supervise.Config{Reaper: supervise.NewReaper(nil), Groups: cgroup.Tree(t.TempDir())})
	t.Cleanup(func() { services.Shutdown(context.Background()) })
	return New(Deps{
		Config: cell.New(Config{}).View(),
		Domains: Domains{
			DiskConfig:     func(*config.Config) disk.Config { return disk.Config{} },
			StorageProblem: func() string { return "" },
			Firewall:       firewall.NewFilter(nil),
			Network:        Network{Config: cell.New(network.Config{}), State: cell.New(network.State{}), TimeSources: cell.New(timesync.Sources{})},
			HostFacts:      func() host.Facts { return host.Facts{} },
			HasIdentity:    func() bool { return true },
			UpdatePairing:  func(*config.Config, []byte) {},
			Services:       services,
			Volumes:        noVolumes(t),
		},
		HostConfig:    func(c *config.Config) host.Config { return nodeplan.Host(c, nil, nil) },
		APIFacts:      func(*config.Config, network.State) nodeplan.Facts { return nodeplan.Facts{} },
		NodeFacts:     func(*config.Config, network.State) nodeplan.Facts { return nodeplan.Facts{} },
		MemberProblem: func() string { return "" },
		Enter:         func(string, string) {},
		Stopping:      func() bool { return false },
		Event:         func(string, string, string) {},
	})
}

// noVolumes returns the controller of a machine that has only its system disk.
func noVolumes(t *testing.T) *volumes.Controller {
	return volumes.New(volumes.Deps{
		Disks:   func(context.Context, bool) ([]volumes.Disk, error) { return nil, nil },
		Busy:    func() bool { return false },
		Records: filepath.Join(t.TempDir(), "volumes.json"),
	})
}

// planned returns the goal of a configuration with these facts.
func planned(r *Reconciler, c *config.Config, facts nodeplan.Facts) goal {
	r.deps.APIFacts = func(*config.Config, network.State) nodeplan.Facts { return facts }
	g := r.goal(c, facts.Network)
	g.node = func() nodeplan.Want { return nodeplan.Plan(c, facts) }
	return g
}

// pending is a domain with the operations that a test sets; a performed operation is removed.
type pending struct{ left, done []string }

type pendingOp struct {
	p    *pending
	name string
}

func (o pendingOp) String() string { return o.name }

func (o pendingOp) Do(context.Context) error {
	if strings.HasPrefix(o.name, "impossible") {
		return errors.New("no")
	}
	o.p.left = slices.DeleteFunc(o.p.left, func(n string) bool { return n == o.name })
	o.p.done = append(o.p.done, o.name)
	return nil
}

func (p *pending) diff(context.Context, goal) (ops []reconcile.Op, err error) {
	for _, n := range p.left {
		ops = append(ops, pendingOp{p, n})
	}
	return ops, nil
}

// TestDomains checks for every domain of the table that drift and dry run report exactly the
// operations that a reconciliation performs, and that no operation remains.
func TestDomains(t *testing.T) {
	r := testReconciler(t)
	all := r.domains()
	// Other components perform the operations of these domains: the boot, the controllers of the
	// volumes and of the network, the service manager, the task of the extensions.
	// TestDomainsOfOthers checks the network and the services.
	others := map[string]bool{"disk": true, "volumes": true, "extensions": true, "network": true, "services": true}
	states := map[string]*pending{}
	for i, d := range all {
		p := &pending{left: []string{d.name + " 1", d.name + " 2"}}
		states[d.name], all[i].diff, all[i].want, all[i].remarks = p, p.diff, nil, nil
	}
	drifts := map[string][]string{}
	for _, d := range all {
		lines, err := d.drift(t.Context(), goal{})
		if err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
		drifts[d.name] = lines
	}
	var dry DryRun
	if err := dry.addDomains(t.Context(), all, goal{dry: true}); err != nil {
		t.Fatal(err)
	}
	var reports []string
	plans := 0
	err := convergeAll(t.Context(), all, func() goal {
		plans++
		g := r.goal(nil, network.State{})
		g.node = func() nodeplan.Want { return nodeplan.Want{Services: nodeplan.Services{Hold: nodeplan.HoldRemoved}} }
		return g
	}, func(done reconcile.Report) { reports = append(reports, done.String()) })
	if err != nil || plans != 6 { // credentials and services share a plan
		t.Errorf("%v; %d plans were computed, want 6", err, plans)
	}
	performed := dry
	performed.Operations = slices.DeleteFunc(slices.Clone(dry.Operations), func(l string) bool { name, _, _ := strings.Cut(l, ": "); return others[name] })
	if !slices.Equal(reports, performed.Operations) {
		t.Errorf("performed %q\n  dry run %q", reports, performed.Operations)
	}
	for name, p := range states {
		if others[name] {
			p.done = append(p.done, p.left...)
		} else if len(p.left) > 0 {
			t.Errorf("%s: %q remain", name, p.left)
		}
		if !slices.Equal(p.done, drifts[name]) {
			t.Errorf("%s: done %q, drift %q", name, p.done, drifts[name])
		}
	}
	var names []string
	for _, d := range r.DriftSources()[1:] {
		names = append(names, d.Name)
	}
	if got := fmt.Sprint(names); got != "[disk volumes extensions firewall network host api credentials services]" {
		t.Errorf("drift has the domains %s", got)
	}
}

// TestGate checks that the reconciliation skips the later domains if the domain credentials fails,
// but not if another domain fails. It also checks which domains perform their remaining operations
// after a failed operation.
func TestGate(t *testing.T) {
	for failing, want := range map[string]string{
		"firewall":    "firewall host api credentials",
		"host":        "firewall host api credentials",
		"api":         "firewall host credentials",
		"credentials": "firewall host api",
	} {
		r := testReconciler(t)
		all := r.domains()
		var reports []string
		for i, d := range all {
			p := &pending{left: []string{"first", "last"}}
			if d.name == failing {
				p.left[0] = "impossible"
			}
			all[i].diff, all[i].want = p.diff, nil
		}
		i := len(all) - 1
		entered := false
		all[i].apply = func(context.Context, goal, func() error) error { entered = true; return nil }
		err := convergeAll(t.Context(), all, func() goal { return r.goal(nil, network.State{}) }, func(done reconcile.Report) {
			if done.Err == nil && done.Op == "last" {
				reports = append(reports, done.Domain)
			}
		})
		if got := strings.Join(reports, " "); got != want || err == nil || err.Error() != failing+": cannot impossible: no" || entered != (failing != "credentials") {
			t.Errorf("%s: %s, services %t, %v; want %s", failing, got, entered, err, want)
		}
		if problem, _ := r.deps.Domains.Firewall.Problem().Get(); (problem != "") != (failing == "firewall") {
			t.Errorf("%s: the health reports %q", failing, problem)
		}
	}
}

// TestDomainsOfOthers checks the domains network and services. Other components perform their
// operations, and must get the desired state from which the diff was computed.
func TestDomainsOfOthers(t *testing.T) {
	r := testReconciler(t)
	g := planned(r, nil, nodeplan.Facts{Network: network.State{TimeServers: []string{"192.0.2.1"}}})
	g.network.Hostname = "n1"
	for _, name := range []string{"network", "services"} {
		d := r.domain(name)
		if name == "services" {
			if lines, err := d.drift(t.Context(), g); err != nil || fmt.Sprint(lines) != "[start service apid]" {
				t.Errorf("%s: %q, %v", name, lines, err)
			}
		}
		if err := d.converge(t.Context(), g, r.report); err != nil {
			t.Error(err)
		}
	}
	if got, _ := r.deps.Domains.Network.Config.Get(); got.Hostname != "n1" {
		t.Errorf("the network controller gets %+v", got)
	}
	if got, _ := r.deps.Domains.Network.TimeSources.Get(); fmt.Sprint(got.Servers) != "[192.0.2.1]" || got.NTS {
		t.Errorf("time sources %+v", got)
	}
	if lines, err := r.domain("services").drift(t.Context(), g); err != nil || len(lines) > 0 {
		t.Errorf("services remain: %q, %v", lines, err)
	}
}

// TestServicesHeldBack checks that drift lists only changes that a reconciliation makes, while a
// dry run lists all services of the configuration.
func TestServicesHeldBack(t *testing.T) {
	r := testReconciler(t)
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	const all = "start service apid, start service containerd, start service orchestrator-api, start service orchestrator-controllers, start service orchestrator-node"
	for _, test := range []struct {
		name       string
		facts      nodeplan.ServiceFacts
		drift, dry string
		problem    string
	}{
		{"no address", nodeplan.ServiceFacts{}, "", all, ""},
		{"refused", nodeplan.ServiceFacts{Refusal: errors.New("too little memory")}, "start service apid", "", "too little memory"},
		{"no firewall", nodeplan.ServiceFacts{Exposed: true}, "start service apid", "", ""},
	} {
		g := planned(r, c, nodeplan.Facts{Services: test.facts})
		lines, err := r.domain("services").drift(t.Context(), g)
		if got := strings.Join(lines, ", "); got != test.drift || (err == nil) != (test.problem == "") || err != nil && err.Error() != test.problem {
			t.Errorf("%s: drift %s, %v; want %s, %s", test.name, got, err, test.drift, test.problem)
		}
		if lines, err := r.domain("credentials").drift(t.Context(), g); !errors.Is(err, drift.ErrAbsent) {
			t.Errorf("%s: credentials: %q, %v", test.name, lines, err)
		}
		if test.dry == "" {
			continue
		}
		g.dry = true
		var out DryRun
		if err := out.addDomains(t.Context(), []domain{r.domain("credentials"), r.domain("services")}, g); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(strings.Join(out.Operations, ", "), "services: ", ""); got != test.dry {
			t.Errorf("%s: dry run %s, want %s", test.name, got, test.dry)
		}
	}
}

// TestMissingVolume checks that a missing volume is a problem of the services of the active
// configuration, but no reason to reject a new configuration, because the new configuration may add
// or remove the volume.
func TestMissingVolume(t *testing.T) {
	r := testReconciler(t)
	c := config.New("n1", config.RoleControlPlane).WithCluster("c", config.Endpoint{Host: "10.0.0.11", Port: 6443}, config.PKI{}, config.EncryptionKey{})
	services := nodeplan.Services{Hold: nodeplan.HoldVolumes, Problem: errors.New("volume e: no disk matches"), All: []supervise.Service{nodeplan.Apid()}}
	g := r.goal(c, network.State{})
	g.node = func() nodeplan.Want { return nodeplan.Want{Services: services} }
	if _, err := r.domain("services").drift(t.Context(), g); err == nil || err.Error() != services.Problem.Error() {
		t.Errorf("drift: %v, want %v", err, services.Problem)
	}
	g.dry = true
	var out DryRun
	if err := out.addDomains(t.Context(), []domain{r.domain("services")}, g); err != nil || !slices.Equal(out.Operations, []string{"services: start service apid"}) || len(out.Warnings) > 0 {
		t.Errorf("dry run: %+v, %v", out, err)
	}
}

// TestFirewallDomain checks that a reconciliation performs the operations that drift lists, and
// that rejected rules remain in the drift. Drift names the table and the guard as wholes, while a
// dry run lists each rule.
func TestFirewallDomain(t *testing.T) {
	c := config.New("m", config.RoleWorker)
	c.Network.Spec.Firewall = &config.Firewall{}
	other := config.New("m", config.RoleWorker)
	other.Cluster = &config.Cluster{Spec: config.ClusterSpec{Networks: config.ClusterNetworks{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}}
	const guard, table = "keep Services and pods from the machine's own ports", "accept the connections of 1 rules, and reject all others"
	const rules = "accept tcp port 50000 from all networks|reject all other new connections"
	var refused string
	filter := firewall.NewFilter(func(_ context.Context, commands string, _ ...string) error {
		if refused != "" && strings.Contains(commands, refused) {
			return errors.New("the kernel rejects it")
		}
		return nil
	})
	d := firewallDomain(filter)
	for _, step := range []struct {
		name       string
		config     *config.Config
		refused    string
		drift, dry string
		left       string
	}{
		{"boot", nil, "", guard, guard, ""},
		{"no change", nil, "", "", "", ""},
		{"a firewall that the kernel rejects", c, "50000", table, rules, table},
		{"the firewall is retried", c, "", table, rules, ""},
		{"a pod network", other, "", "accept all connections|" + guard, "accept all connections|" + guard, ""},
	} {
		refused = step.refused
		g := goal{firewall: nodeplan.Firewall(step.config), guard: nodeplan.Guard(step.config)}
		drift := func() string {
			lines, err := d.drift(t.Context(), g)
			if err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
			return strings.Join(lines, "|")
		}
		if got := drift(); got != step.drift {
			t.Errorf("%s: drift %s, want %s", step.name, got, step.drift)
		}
		var out DryRun
		if err := out.addDomains(t.Context(), []domain{d}, g); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(strings.Join(out.Operations, "|"), "firewall: ", ""); got != step.dry {
			t.Errorf("%s: dry run %s, want %s", step.name, got, step.dry)
		}
		var tried []string
		err := d.converge(t.Context(), g, func(r reconcile.Report) { tried = append(tried, r.Op) })
		if (err == nil) != (step.left == "") || strings.Join(tried, "|") != step.drift {
			t.Errorf("%s: tried %q, %v", step.name, tried, err)
		}
		if why, _ := filter.Problem().Get(); (why == "") != (err == nil) {
			t.Errorf("%s: the health reports %q", step.name, why)
		}
		if got := drift(); got != step.left {
			t.Errorf("%s: %s remain, want %s", step.name, got, step.left)
		}
	}
}

// TestFileDomains uses the real credentials of apid and of a node. It checks that a reconciliation
// performs the operations of drift and dry run, and that none remains.
func TestFileDomains(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	address := network.AddressState{}
	if err := address.Prefix.UnmarshalText([]byte("10.0.0.11/24")); err != nil {
		t.Fatal(err)
	}
	facts := nodeplan.Facts{Identity: key, Network: network.State{Links: []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{address}}}}}
	r := testReconciler(t)
	g := planned(r, c, facts)
	api, node := g.api(), g.node()
	if err := errors.Join(api.problem, node.NodeProblem); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	below(&api.want, root)
	below(&node.Node.Credentials, root)
	g.api, g.node = func() apiGoal { return api }, func() nodeplan.Want { return node }
	for _, name := range []string{"api", "credentials"} {
		d := r.domain(name)
		lines, err := d.drift(t.Context(), g)
		if err != nil || len(lines) < 5 {
			t.Fatalf("%s: %q, %v", name, lines, err)
		}
		dry := g
		dry.dry = true
		var out DryRun
		if err := out.addDomains(t.Context(), []domain{d}, dry); err != nil {
			t.Fatal(err)
		}
		var done []string
		if err := d.converge(t.Context(), g, func(r reconcile.Report) { done = append(done, r.String()) }); err != nil {
			t.Fatal(err)
		}
		for i := range lines {
			lines[i] = name + ": " + lines[i]
		}
		if !slices.Equal(done, lines) || !slices.Equal(done, out.Operations) {
			t.Errorf("%s: performed %q\ndrift %q\ndry run %q", name, done, lines, out.Operations)
		}
		if lines, err := d.drift(t.Context(), g); err != nil || len(lines) > 0 {
			t.Errorf("%s: %q remain, %v", name, lines, err)
		}
	}
}

// below moves credentials into the directory root, and changes their owner to the user of the test.
func below(w *credentials.Want, root string) {
	uid := uint32(os.Getuid())
	for i := range w.Dirs {
		w.Dirs[i] = credentials.Dir{Path: filepath.Join(root, w.Dirs[i].Path), UID: uid}
	}
	for i := range w.Files {
		w.Files[i].Path, w.Files[i].UID = filepath.Join(root, w.Files[i].Path), uid
	}
	for i := range w.Leaves {
		w.Leaves[i].Cert, w.Leaves[i].Key, w.Leaves[i].UID = filepath.Join(root, w.Leaves[i].Cert), filepath.Join(root, w.Leaves[i].Key), uid
	}
	for i := range w.Strays {
		w.Strays[i] = filepath.Join(root, w.Strays[i])
	}
}
