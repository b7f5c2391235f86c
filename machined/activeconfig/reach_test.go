package activeconfig

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestReachState sends observations of the network at given times to step, and checks the action
// and the delay after each observation.
func TestReachState(t *testing.T) {
	a, b := &config.Config{}, &config.Config{}
	never := func(c *config.Config) reachInput { return reachInput{config: c, decided: true, hasFallback: true} }
	with := func(in reachInput, change func(*reachInput)) reachInput { change(&in); return in }
	address := func(in *reachInput) { in.hasAddress = true }
	type at struct {
		minutes float64
		in      reachInput
		act     reachAction
		rest    time.Duration // delay until the next observation; 0: none is necessary
	}
	for name, life := range map[string][]at{
		"no configuration": {{0, reachInput{decided: true}, reachNone, 0}},
		"an address at the first observation": {
			{0, with(never(a), address), reachRecord, 0},
			{1, with(never(a), func(in *reachInput) { in.hadAddress = true }), reachNone, 0},
		},
		"no address, after an earlier address": {
			{0, with(never(a), func(in *reachInput) { in.hadAddress = true }), reachNone, 0},
			{60, with(never(a), func(in *reachInput) { in.hadAddress = true }), reachNone, 0},
		},
		"never an address": {
			{0, never(a), reachNone, 10 * time.Minute},
			{9.5, never(a), reachNone, 30 * time.Second},
			{10, never(a), reachReturn, time.Minute},
			{10.5, never(a), reachNone, 30 * time.Second},
			{11, never(a), reachReturn, time.Minute}, // the first return failed
			{12, with(never(b), func(in *reachInput) { in.hadAddress = true }), reachNone, 0},
		},
		"an address just before the deadline": {
			{0, never(a), reachNone, 10 * time.Minute},
			{9.9, with(never(a), address), reachRecord, 0},
		},
		"another configuration gets the full time": {
			{0, never(a), reachNone, 10 * time.Minute},
			{9, never(b), reachNone, 10 * time.Minute},
			{18, never(b), reachNone, time.Minute},
			{19, never(b), reachReturn, time.Minute},
		},
		"on trial the time does not run, and nothing is recorded": {
			{0, with(never(a), func(in *reachInput) { in.decided = false }), reachNone, 0},
			{0.5, with(never(a), func(in *reachInput) { in.decided, in.hasAddress = false, true }), reachNone, 0},
			{30, never(a), reachNone, 10 * time.Minute},
			{40, never(a), reachReturn, time.Minute},
		},
		"no configuration to return to": {
			{0, with(never(a), func(in *reachInput) { in.hasFallback = false }), reachNone, 0},
			{60, with(never(a), func(in *reachInput) { in.hasFallback = false }), reachNone, 0},
			{61, with(never(a), address), reachRecord, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r reachState
			begin := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
			for _, o := range life {
				o.in.now = begin.Add(time.Duration(o.minutes * float64(time.Minute)))
				var act reachAction
				var rest time.Duration
				if r, act, rest = r.step(o.in); act != o.act || rest != o.rest {
					t.Errorf("after %v min: action %d, delay %v; want %d, %v", o.minutes, act, rest, o.act, o.rest)
				}
			}
		})
	}
}

// TestHasAddress checks that hasAddress is true only for a link with an address that other hosts
// can use.
func TestHasAddress(t *testing.T) {
	given := func(prefix, unfit string) []network.AddressState {
		return []network.AddressState{{Prefix: netip.MustParsePrefix(prefix), Unfit: unfit}}
	}
	for _, c := range []struct {
		link network.LinkState
		want bool
	}{
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, true},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("fd00::5/64", "")}, true},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", ""), Kind: "bond"}, true},
		// These links are always up, or serve no service of the system.
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", ""), Kind: "dummy"}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", ""), Kind: "wireguard"}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", ""), Kind: "vrf"}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", ""), Master: "red"}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true}, false},
		{network.LinkState{Managed: true, Up: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Managed: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("fe80::5/64", "")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "duplicate")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("127.0.0.1/8", "")}, false},
	} {
		if got := hasAddress(network.State{Links: []network.LinkState{{}, {Name: "red", Kind: "vrf"}, c.link}}); got != c.want {
			t.Errorf("%+v: %v", c.link, got)
		}
	}
}

// document returns the configuration of a machine with one link and without a cluster.
func document(link string) []byte {
	return []byte("apiVersion: orlop.dev/v1alpha1\nkind: Machine\nmetadata: {name: n1}\nspec: {role: controlplane}\n---\n" +
		"apiVersion: orlop.dev/v1alpha1\nkind: Network\nspec:\n  links:\n  - {name: " + link + ", addresses: [10.0.0.5/24]}\n")
}

// testManager returns a manager on which the configuration current is stored and active. It stores
// configurations in a directory of the test, and its network has no addresses.
func testManager(t *testing.T, current []byte) *Manager {
	t.Helper()
	m := New(Deps{
		Store:          configstore.Store{Dir: t.TempDir()},
		Embedded:       filepath.Join(t.TempDir(), "none"),
		StorageProblem: func() string { return "" },
		Network:        Network{Config: cell.New(network.Config{}), State: cell.New(network.State{})},
		Undecided:      func() error { return nil },
		Event:          func(string, string) {},
		Console:        func(string) {},
	})
	if err := m.Store().Put(current); err != nil {
		t.Fatal(err)
	}
	a, _, err := m.Load()
	if err != nil {
		t.Fatal(err)
	}
	m.cell.Set(a)
	return m
}

// TestReturnToReached checks that the machine records the configuration with which it had an
// address, and returns to it, also after a boot.
func TestReturnToReached(t *testing.T) {
	m := testManager(t, document("eth0"))
	link := func() string {
		now := m.Current()
		return now.Config.Network.Spec.Links[0].Name
	}
	state := network.State{Revision: 2, Links: []network.LinkState{{Managed: true, Up: true, Carrier: true, Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("10.0.0.5/24")}}}}}
	now := m.Current()
	if in := m.reachInput(now, state); in.hasAddress || in.hadAddress || in.hasFallback {
		t.Errorf("with the state of a network without a configuration: %+v", in)
	}
	m.deps.Network.Config.Set(nodeplan.Network(now.Config))
	if in := m.reachInput(now, state); !in.hasAddress || in.hadAddress || !in.decided {
		t.Errorf("with an address: %+v", in)
	}
	if err := m.recordReached(now); err != nil {
		t.Fatal(err)
	}
	if in := m.reachInput(now, network.State{}); !in.hadAddress {
		t.Errorf("the cable is pulled: %+v", in)
	}

	if err := m.Store().Put(document("eth9")); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Reload(); err != nil {
		t.Fatal(err)
	}
	lost := m.Current()
	if in := m.reachInput(lost, state); in.hasAddress || in.hadAddress || !in.hasFallback {
		t.Errorf("a new configuration, with the network state of the previous one: %+v", in)
	}
	// The first configuration is not active any more, so the call has no effect.
	if err := m.returnToReached(now); err != nil || link() != "eth9" {
		t.Errorf("returnToReached of a configuration that is not active: %v, link %s; want eth9", err, link())
	}
	trying := lost
	trying.TrialEnd = time.Now().Add(time.Hour)
	if in := m.reachInput(trying, network.State{}); in.decided {
		t.Error("decided is true during a trial")
	}
	if err := m.returnToReached(lost); err != nil || link() != "eth0" {
		t.Errorf("returnToReached of the active configuration: %v, link %s; want eth0", err, link())
	}
	if _, current, err := m.Store().LastReachable(); err != nil || !current {
		t.Errorf("the active configuration is not recorded as reachable: %v, %v", current, err)
	}
	last, err := m.Store().Last()
	if err != nil || last.By != "the machine, without an address with the previous one" {
		t.Errorf("the history says %q, %v", last.By, err)
	}
}

// TestConfirm checks that a call confirms the configuration only with the name of the active trial,
// and only over a connection that began after the activation.
func TestConfirm(t *testing.T) {
	m := testManager(t, document("eth0"))
	var active *config.Config // the configuration that became active between 20 s and 0.1 s ago
	m.deps.Proves = func(c *config.Config, age string) bool { return c == active && age != "20000" }
	call := func(age, name string) codes.Code {
		t.Helper()
		_, err := m.Confirm(t.Context(), api.Caller{Age: age}, name)
		return status.Code(err)
	}
	if got := call("0", ""); got != codes.FailedPrecondition {
		t.Errorf("nothing is on trial: %v", got)
	}
	if err := m.Store().StartTrial(document("eth1")); err != nil {
		t.Fatal(err)
	}
	tried, err := m.Reload()
	if err != nil {
		t.Fatal(err)
	}
	tried.TrialEnd, tried.TrialName, tried.SameNetwork = time.Now().Add(time.Hour), "mine", true
	m.cell.Set(tried)
	if got := call("0", "mine"); got != codes.Unavailable {
		t.Errorf("the configuration is not active yet: %v", got)
	}
	active = tried.Config
	for _, c := range []struct {
		age, name string
		want      codes.Code
	}{{"0", "another", codes.FailedPrecondition}, {"20000", "mine", codes.Unavailable}, {"100", "mine", codes.OK}, {"100", "mine", codes.FailedPrecondition}} {
		if got := call(c.age, c.name); got != c.want {
			t.Errorf("age %s, name %s: %v, want %v", c.age, c.name, got, c.want)
		}
	}
	if text, err := m.Store().Confirmed(); err != nil || string(text) != string(document("eth1")) {
		t.Errorf("after the confirmation: %s, %v", text, err)
	}
}
