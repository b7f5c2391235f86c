package main

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
		t.Errorf("got %q by %q", got, failures)
	}
	if got := failuresOf(nil); got != nil {
		t.Errorf("nothing fails with %q", got)
	}
	if got := reconcile.Done(planned, nil); len(got) != len(planned) {
		t.Errorf("nothing failed, and this is done: %q", got)
	}
}

// TestAwaitConverged checks that the answer contains the failures of the caller's configuration,
// not of the previous configuration, and reports a replacement. A failure that disappears in a
// moment does not count.
func TestAwaitConverged(t *testing.T) {
	before, mine, other := config.New("n1", config.RoleWorker), config.New("n1", config.RoleWorker), config.New("n1", config.RoleWorker)
	for name, c := range map[string]struct {
		then []convergence // each a second later
		want string
	}{
		"done":                     {[]convergence{{config: mine, done: true}}, ""},
		"it fails":                 {[]convergence{{config: mine, done: true, failures: []string{"host: cannot load"}}}, "host: cannot load"},
		"it fails, in other words": {[]convergence{{config: mine, done: true, failures: []string{"a"}}, {config: mine, done: true, failures: []string{"b"}}}, "b"},
		"it fails for a moment":    {[]convergence{{config: mine, done: true, failures: []string{"a"}}, {config: mine, done: true}}, ""},
		"another takes its place":  {[]convergence{{config: other, done: true}}, "configuration: another one became active meanwhile"},
		"it takes too long":        {nil, "configuration: its operations are not done after 1m0s; `orlopctl get drift` shows the remaining ones"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &machine{config: cell.New(applied{config: mine}), convergence: cell.New(convergence{config: before, done: true, failures: []string{"old"}}),
					networkState: cell.New(network.State{}), networkConfig: cell.New(network.Config{})}
				go func() {
					for _, s := range c.then {
						time.Sleep(time.Second)
						m.config.Set(applied{config: s.config})
						m.convergence.Set(s)
					}
				}()
				if got := strings.Join(m.awaitConverged(t.Context(), mine, nodeplan.Network(mine)), "; "); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
			})
		})
	}
}

// TestConfigurationProblem checks that the health contains failures of all domains, and none of
// another configuration.
func TestConfigurationProblem(t *testing.T) {
	mine := config.New("n1", config.RoleWorker)
	mine.Network.Spec.Links = []config.Link{{Name: "eth0"}, {MAC: "02:00:00:00:00:01"}}
	both := []network.LinkState{{Name: "lo"}, {Name: "eth0"}, {Name: "eth1", MAC: "02:00:00:00:00:01"}}
	now := applied{config: mine}
	for name, c := range map[string]struct {
		settled convergence
		state   network.State
		want    string
	}{
		"all is well":           {convergence{config: mine}, network.State{Links: both, Problems: []string{"link eth1: no carrier"}}, ""},
		"an operation":          {convergence{config: mine, failures: []string{"host: cannot load"}}, network.State{Links: both}, "operations fail: host: cannot load"},
		"one of the network":    {convergence{config: mine}, network.State{Links: both, Failed: []string{"route x: add: cannot do: no"}}, "operations fail: network: route x: add: cannot do: no"},
		"a link":                {convergence{config: mine}, network.State{Links: both[:2]}, "operations fail: network: cannot configure link 02:00:00:00:00:01: it does not exist"},
		"nothing is known":      {convergence{config: mine}, network.State{}, ""},
		"another configuration": {convergence{config: config.New("n1", config.RoleWorker), failures: []string{"x"}}, network.State{Links: both}, ""},
	} {
		if got := configurationProblem(now, c.settled, c.state); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := configurationProblem(applied{}, convergence{}, network.State{Failed: []string{"x"}}); got != "" {
		t.Errorf("without a configuration: %q", got)
	}
}

// TestProves checks that only a connection that was opened after the activation of the
// configuration on trial confirms it.
func TestProves(t *testing.T) {
	c := &config.Config{}
	now := time.Now()
	tried := convergence{}.next(c, nil, now.Add(-10*time.Second))
	for age, want := range map[string]bool{"0": true, "8500": true, "9500": false, "10500": false, "60000": false, "": true, "x": false, "-1": true} {
		if got := tried.proves(c, age, now); got != want {
			t.Errorf("%s ms: %v", age, got)
		}
	}
	if tried.proves(&config.Config{}, "0", now) || (convergence{}).proves(c, "0", now) {
		t.Error("what is not in force yet is proved")
	}
	// Rules that were installed at the second attempt are proved by a later connection.
	again := convergence{}.next(c, []string{"firewall: no memory"}, now.Add(-10*time.Second)).next(c, nil, now.Add(-5*time.Second)).next(c, nil, now)
	if again.proves(c, "7000", now) || !again.proves(c, "3000", now) {
		t.Errorf("in force since %v", now.Sub(again.first))
	}
}
