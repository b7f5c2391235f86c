package nodeplan

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/trust"
)

// reference returns the reference configuration.
func reference(t *testing.T) *config.Config {
	t.Helper()
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return c
}

// facts returns the facts of an installed machine with an address.
func facts(t *testing.T) Facts {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return Facts{
		Release: buildinfo.Release{Version: "1.2.3", PauseImage: "registry.example/pause:1"}, Identity: key,
		Network: network.State{
			Links:   []network.LinkState{{Managed: true, Up: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.11/24"), Origin: "static"}}}},
			Servers: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("127.0.0.53")}, Search: []string{"corp.example"},
		},
		Trust: Trust{
			Callers: credentials.CallerCAs{Revoked: []byte("[]")},
			Revoked: []trust.Revocation{{Lineage: "1f", Name: "eve", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "CN=admin"}},
		},
	}
}

// previousSysctls are values that kernel parameters had before machined first set them.
var previousSysctls = map[string]string{"vm.swappiness": "60"}

// indented returns a document as JSON.
func indented(t *testing.T, document any) string {
	t.Helper()
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// content lists the directories, files and certificates of credentials, one line each.
func content(w credentials.Want) string {
	var out strings.Builder
	for _, d := range w.Dirs {
		fmt.Fprintf(&out, "dir  %s of %d\n", d.Path, d.UID)
	}
	for _, f := range w.Files {
		fmt.Fprintf(&out, "file %s of %d, %v\n", f.Path, f.UID, f.Mode)
	}
	for _, l := range w.Leaves {
		by := "its own key"
		if l.By != nil {
			by = l.By.Cert.Subject.String()
		}
		fmt.Fprintf(&out, "leaf %s of %d by %s: %s %v %v %v\n", l.Cert, l.UID, by, l.Spec.CN, l.Spec.O, l.Spec.DNS, l.Spec.IPs)
	}
	return out.String()
}

// TestPlan compares each document of the reference configuration with its golden file.
func TestPlan(t *testing.T) {
	c := reference(t)
	f := facts(t)
	w := Plan(c, f)
	api, err := API(c, f)
	if err != nil || w.NodeProblem != nil || w.Services.Problem != nil || w.Services.Hold != HoldNothing {
		t.Fatalf("the plan has problems: %v, %v, %v, %q", err, w.NodeProblem, w.Services.Problem, w.Services.Hold)
	}
	a, err := authorities(c, f)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"network.json":     indented(t, Network(c)),
		"volumes.json":     indented(t, Volumes(c)),
		"host.json":        indented(t, Host(c, nil, previousSysctls)),
		"firewall.nft":     Firewall(c).Commands(nodespec.PodBridge),
		"guard.nft":        Guard(c).Commands(nodespec.PodBridge),
		"api.txt":          content(api),
		"node.json":        indented(t, w.Node.Spec),
		"credentials.txt":  content(w.Node.Credentials),
		"addons.json":      string(a.Addons) + "\n",
		"labels.json":      string(a.NodeLabels) + "\n",
		"revoked.json":     string(a.RevokedSet) + "\n",
		"services.json":    indented(t, w.Services.All),
		"resolvers.txt":    strings.Join(UnusedResolvers(c, f.Network), "\n") + "\n",
		"unconfigured.txt": unconfigured(t, f),
	} {
		golden.Assert(t, got, "plan-"+name)
	}
}

// unconfigured returns the documents of a machine without a configuration, as text.
func unconfigured(t *testing.T, f Facts) string {
	w := Plan(nil, f)
	api, err := API(nil, f)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("network %+v\nhost %+v\nfirewall %v\nnode: %v\nservices %v\n%s", Network(nil), Host(nil, nil, previousSysctls), Firewall(nil).Lines(), w.NodeProblem, names(w.Services.Now(nil)), content(api))
}

func names(services []supervise.Service) (out []string) {
	for _, s := range services {
		out = append(out, s.Name)
	}
	return out
}

// TestHold checks why services are held back, and which services run then. In each case, apid and
// all services of a control-plane machine ran before.
func TestHold(t *testing.T) {
	leaf, err := pki.SelfSigned(pki.Spec{CN: "w", Usage: pki.Both, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	plane := reference(t)
	worker := reference(t)
	worker.Machine.Spec.Role = config.RoleWorker
	alone := reference(t)
	alone.Cluster = nil
	for name, test := range map[string]struct {
		config *config.Config
		facts  func(*Facts)
		hold   Hold
		now    string // the services that run
	}{
		"control plane":              {plane, nil, HoldNothing, "apid containerd orchestrator-api orchestrator-controllers orchestrator-node metricsd podlogd"},
		"no cluster":                 {alone, nil, HoldNoNode, "apid"},
		"in memory":                  {plane, func(f *Facts) { f.InMemory = true }, HoldNoNode, "apid"},
		"too little memory":          {plane, func(f *Facts) { f.Services.Refusal, f.Services.Exposed = errors.New("memory"), true }, HoldRefused, "apid"},
		"the firewall is not active": {plane, func(f *Facts) { f.Services.Exposed, f.Network = true, network.State{} }, HoldExposed, "apid"},
		"a part of DATA is missing":  {plane, func(f *Facts) { f.Services.Volumes = errors.New("away") }, HoldVolumes, "apid containerd orchestrator-api orchestrator-controllers orchestrator-node"},
		"no firewall, and a part of DATA is missing": {plane, func(f *Facts) { f.Services.Exposed, f.Services.Volumes = true, errors.New("away") }, HoldExposed, "apid"},
		"no address":                         {plane, func(f *Facts) { f.Network = network.State{} }, HoldNoAddress, "apid containerd orchestrator-api orchestrator-controllers orchestrator-node"},
		"no address for a long time":         {plane, func(f *Facts) { f.Network, f.Services.AddressLost = network.State{}, true }, HoldNoAddress, "apid containerd"},
		"not joined":                         {worker, func(f *Facts) { f.Member.Joined = false }, HoldNotJoined, "apid"},
		"joined":                             {worker, nil, HoldNothing, "apid containerd orchestrator-node metricsd podlogd"},
		"removed":                            {worker, func(f *Facts) { f.Member.Removed = true }, HoldRemoved, "apid containerd orchestrator-api orchestrator-controllers orchestrator-node"},
		"removed, and its pods have stopped": {worker, func(f *Facts) { f.Member.Removed, f.Member.PodsStopped = true, true }, HoldRemoved, "apid containerd"},
	} {
		f := facts(t)
		f.Member = Member{Joined: true, Machine: leaf}
		if test.facts != nil {
			test.facts(&f)
		}
		running := append([]supervise.Service{Apid()}, Kubernetes(true)...)
		s := Plan(test.config, f).Services
		if got := strings.Join(names(s.Now(running)), " "); s.Hold != test.hold || got != test.now {
			t.Errorf("%s: hold %q, services %s; want %q, %s", name, s.Hold, got, test.hold, test.now)
		}
		if got := strings.Join(names(s.Now([]supervise.Service{Apid()})), " "); test.hold == HoldVolumes && (got != "apid" || s.Problem == nil) {
			t.Errorf("%s: after a boot: %s, %v", name, got, s.Problem)
		}
		if test.hold == HoldNothing && !slices.EqualFunc(s.All, s.Now(nil), func(a, b supervise.Service) bool {
			return a.Name == b.Name && slices.Equal(a.Process.Env, b.Process.Env)
		}) {
			t.Errorf("%s: no service is held back, but not all services run", name)
		}
	}
}
