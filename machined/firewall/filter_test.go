package firewall

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestFirewallThatDoesNotLoad checks the rules that are active if the kernel rejects rules. At the
// start of a machine, only the API port is reachable until the kernel accepts the rules. A running
// machine retains its former rules.
func TestFirewallThatDoesNotLoad(t *testing.T) {
	want := &Config{Open: []Rule{{Protocol: "tcp", Port: 50000}}, SystemPorts: []int{50000}}
	other := &Config{Open: []Rule{{Protocol: "tcp", Port: 50000}, {Protocol: "tcp", Port: 9100}}, SystemPorts: []int{50000}}
	full, changed, closed := want.Commands("cni0"), other.Commands("cni0"), APIOnly(50000)
	for name, c := range map[string]struct {
		before  installed
		want    *Config
		refuses []string // the commands that the kernel rejects
		now     string   // the active rules after the call
		ok      bool
		exposed bool
	}{
		"rules accepted, no port guard":         {installed{}, want, nil, full, true, true},
		"rules accepted":                        {installed{guard: "g"}, want, nil, full, true, false},
		"rules rejected at the start":           {installed{guard: "g"}, want, []string{full}, closed, false, false},
		"rules accepted after a rejection":      {installed{guard: "g", firewall: closed}, want, nil, full, true, false},
		"rules rejected again":                  {installed{guard: "g", firewall: closed}, want, []string{full}, closed, false, false},
		"all rules rejected at the start":       {installed{guard: "g"}, want, []string{full, closed}, "", false, true},
		"running machine, other rules rejected": {installed{firewall: full, started: true}, other, []string{changed}, full, false, false},
		"running machine, first rules rejected": {installed{started: true}, want, []string{full}, "", false, false},
		"running machine, removal rejected":     {installed{firewall: full, started: true}, nil, []string{Absent}, full, false, false},
	} {
		r := c.before
		err := r.install(t.Context(), func(_ context.Context, commands string, _ ...string) error {
			if slices.Contains(c.refuses, commands) {
				return errors.New("the kernel says no")
			}
			return nil
		}, c.want)
		if (err == nil) != c.ok || r.firewall != c.now || r.exposed(c.want) != c.exposed {
			t.Errorf("%s: %v, exposed %v, active rules:\n%s", name, err, r.exposed(c.want), r.firewall)
		}
	}
}

// TestGuardThatDoesNotLoad checks that the services of the cluster wait until the kernel has
// accepted the port guard, with and without a firewall, and that a running machine retains the
// former guard.
func TestGuardThatDoesNotLoad(t *testing.T) {
	guard := Guard{TCP: []int{50000}, UDP: []int{8472}, Loopback: []int{10249}, Closed: []int{50000}}
	other := guard
	other.Pods = prefixes("10.244.0.0/16")
	for name, want := range map[string]*Config{"no firewall": nil, "firewall": {Open: []Rule{{Protocol: "tcp", Port: 50000}}, SystemPorts: []int{50000}}} {
		rejects := true
		f := NewFilter(func(_ context.Context, commands string, modules ...string) error {
			if rejects && strings.Contains(commands, GuardTable) {
				return errors.New("the kernel says no")
			}
			return nil
		})
		perform := func(g Guard) (failure string) {
			for _, op := range f.Diff(want, g) {
				if err := op.Do(t.Context()); err != nil {
					failure = err.Error()
				}
			}
			return failure
		}
		const cause = "port guard: cannot keep Services and pods from the machine's own ports: the kernel says no; "
		for _, step := range []struct {
			rejects bool
			guard   Guard
			failure string
			exposed bool
		}{
			{true, guard, cause + "the cluster's services wait, and only port 50000 listens, until a retry succeeds", true},
			{false, guard, "", false},
			{true, other, cause + "the former rules stay active until a retry succeeds", false},
		} {
			rejects = step.rejects
			if got := perform(step.guard); got != step.failure || f.Exposed(want) != step.exposed {
				t.Errorf("%s: %q, exposed %t; want %q, %t", name, got, f.Exposed(want), step.failure, step.exposed)
			}
			if left := len(f.Diff(want, step.guard)); (left > 0) != (step.failure != "") {
				t.Errorf("%s: %d operations remain", name, left)
			}
		}
		f.SetStarted()
		if f.Exposed(want) {
			t.Errorf("%s: Exposed is true on a running machine, so its services would wait", name)
		}
	}
}
