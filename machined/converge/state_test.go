package converge

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// TestUndone checks that a failed operation of any domain is not reported as done.
func TestUndone(t *testing.T) {
	modules := reconcile.Report{Domain: "host", Op: "load kernel modules iscsi_tcp", Err: errors.New("iscsi_tcp: not found")}
	planned := []string{
		`config: Machine.spec.kernelModules[0]: (none) → iscsi_tcp`, "host: load kernel modules iscsi_tcp", "host: load kernel modules iscsi_tcp2",
		`host: set kernel parameter vm.x = "1" (was "0")`, "network: link eth0: up", "network: link eth1: up",
	}
	failures := failuresOf(errors.Join(
		fmt.Errorf("%s", modules), errors.Join(errors.New("network: link eth1: up: cannot do: no such device"), errors.New("api: cannot write"))))
	want := []string{planned[0], planned[2], planned[3], planned[4]}
	if got := reconcile.Done(planned, failures); strings.Join(got, "|") != strings.Join(want, "|") || len(failures) != 3 {
		t.Errorf("the operations done are %q, with the failures %q", got, failures)
	}
	if got := failuresOf(nil); got != nil {
		t.Errorf("failuresOf(nil) returns %q", got)
	}
	if got := reconcile.Done(planned, nil); len(got) != len(planned) {
		t.Errorf("without failures, the operations done are %q", got)
	}
}

// TestAwaitConverged checks that the answer contains the failures of the caller's configuration,
// not of the previous configuration, and reports a replacement. A failure that disappears soon is
// not reported.
func TestAwaitConverged(t *testing.T) {
	before, mine, other := config.New("n1", config.RoleWorker), config.New("n1", config.RoleWorker), config.New("n1", config.RoleWorker)
	for name, c := range map[string]struct {
		then []State // one each second
		want string
	}{
		"no failure":         {[]State{{Config: mine, Done: true}}, ""},
		"an operation fails": {[]State{{Config: mine, Done: true, Failures: []string{"host: cannot load"}}}, "host: cannot load"},
		"an operation fails, and its message changes": {[]State{{Config: mine, Done: true, Failures: []string{"a"}}, {Config: mine, Done: true, Failures: []string{"b"}}}, "b"},
		"a failure disappears":                        {[]State{{Config: mine, Done: true, Failures: []string{"a"}}, {Config: mine, Done: true}}, ""},
		"another configuration becomes active":        {[]State{{Config: other, Done: true}}, "configuration: another one became active meanwhile"},
		"the operations take too long":                {nil, "configuration: its operations are not done after 1m0s; `orlopctl get drift` shows the remaining ones"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := testReconciler(t)
				active := cell.New(Config{Config: mine})
				r.deps.Config = active.View()
				r.state.Set(State{Config: before, Done: true, Failures: []string{"old"}})
				go func() {
					for _, s := range c.then {
						time.Sleep(time.Second)
						active.Set(Config{Config: s.Config})
						r.state.Set(s)
					}
				}()
				if got := strings.Join(r.AwaitConverged(t.Context(), mine, nodeplan.Network(mine)), "; "); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// TestProblem checks that the health contains failures of all domains, and none of
// another configuration.
func TestProblem(t *testing.T) {
	mine := config.New("n1", config.RoleWorker)
	mine.Network.Spec.Links = []config.Link{{Name: "eth0"}, {MAC: "02:00:00:00:00:01"}}
	both := []network.LinkState{{Name: "lo"}, {Name: "eth0"}, {Name: "eth1", MAC: "02:00:00:00:00:01"}}
	for name, c := range map[string]struct {
		settled State
		state   network.State
		want    string
	}{
		"no failure":                          {State{Config: mine}, network.State{Links: both, Problems: []string{"link eth1: no carrier"}}, ""},
		"an operation":                        {State{Config: mine, Failures: []string{"host: cannot load"}}, network.State{Links: both}, "operations fail: host: cannot load"},
		"an operation of the network":         {State{Config: mine}, network.State{Links: both, Failed: []string{"route x: add: cannot do: no"}}, "operations fail: network: route x: add: cannot do: no"},
		"a link that does not exist":          {State{Config: mine}, network.State{Links: both[:2]}, "operations fail: network: cannot configure link 02:00:00:00:00:01: it does not exist"},
		"the state of the network is unknown": {State{Config: mine}, network.State{}, ""},
		"another configuration":               {State{Config: config.New("n1", config.RoleWorker), Failures: []string{"x"}}, network.State{Links: both}, ""},
	} {
		if got := c.settled.Problem(mine, c.state); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (State{}).Problem(nil, network.State{Failed: []string{"x"}}); got != "" {
		t.Errorf("without a configuration: %q", got)
	}
}

// TestProves checks that only a connection that was opened after the activation of the
// configuration on trial confirms this configuration.
func TestProves(t *testing.T) {
	c := &config.Config{}
	now := time.Now()
	tried := State{}.next(c, nil, now.Add(-10*time.Second))
	for age, want := range map[string]bool{"0": true, "8500": true, "9500": false, "10500": false, "60000": false, "": true, "x": false, "-1": true} {
		if got := tried.Proves(c, age, now); got != want {
			t.Errorf("%s ms: %v", age, got)
		}
	}
	if tried.Proves(&config.Config{}, "0", now) || (State{}).Proves(c, "0", now) {
		t.Error("Proves returns true for a configuration that is not active")
	}
	// If rules were installed only at the second attempt, only a connection after this attempt
	// confirms them.
	again := State{}.next(c, []string{"firewall: no memory"}, now.Add(-10*time.Second)).next(c, nil, now.Add(-5*time.Second)).next(c, nil, now)
	if again.Proves(c, "7000", now) || !again.Proves(c, "3000", now) {
		t.Errorf("the configuration is active for %v", now.Sub(again.First))
	}
}
