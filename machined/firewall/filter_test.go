package firewall

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// TestFirewallThatDoesNotLoad checks that only the API port is reachable until the kernel accepts
// the rules, and that a running machine retains its rules.
func TestFirewallThatDoesNotLoad(t *testing.T) {
	want := &Config{Open: []Rule{{Protocol: "tcp", Port: 50000}}, SystemPorts: []int{50000}}
	other := &Config{Open: []Rule{{Protocol: "tcp", Port: 50000}, {Protocol: "tcp", Port: 9100}}, SystemPorts: []int{50000}}
	full, changed, closed := want.Commands("cni0"), other.Commands("cni0"), APIOnly(50000)
	for name, c := range map[string]struct {
		before  installed
		want    *Config
		refuses []string // rejected by the kernel
		now     string
		ok      bool
		exposed bool
	}{
		"it loads":                         {installed{}, want, nil, full, true, false},
		"it does not at the start":         {installed{}, want, []string{full}, closed, false, false},
		"it does after that":               {installed{firewall: closed}, want, nil, full, true, false},
		"it does not after that":           {installed{firewall: closed}, want, []string{full}, closed, false, false},
		"nothing loads at the start":       {installed{}, want, []string{full, closed}, "", false, true},
		"another does not, at work":        {installed{firewall: full, started: true}, other, []string{changed}, full, false, false},
		"the first does not, at work":      {installed{started: true}, want, []string{full}, "", false, false},
		"none, and it cannot be taken off": {installed{firewall: full, started: true}, nil, []string{Absent}, full, false, false},
	} {
		r := c.before
		err := r.install(t.Context(), func(_ context.Context, commands string, _ ...string) error {
			if slices.Contains(c.refuses, commands) {
				return errors.New("the kernel says no")
			}
			return nil
		}, c.want)
		if (err == nil) != c.ok || r.firewall != c.now || r.exposed(c.want) != c.exposed {
			t.Errorf("%s: %v, exposed %v, in force:\n%s", name, err, r.exposed(c.want), r.firewall)
		}
	}
}
