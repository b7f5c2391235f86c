package flags

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestLimits checks which values flags with limits accept. A rejected value must not change the
// variable of a flag, and its error must state the flag, the value and the accepted values. The
// limits must not change the help.
func TestLimits(t *testing.T) {
	var ttl, hold time.Duration
	var cpus int
	var tail uint32
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.DurationVar(&ttl, "ttl", 0, "validity")
	set.DurationVar(&hold, "hold", time.Minute, "time between steps")
	set.IntVar(&cpus, "cpus", 2, "processors")
	set.Uint32Var(&tail, "tail", 0, "lines")
	help := set.FlagUsages()
	Positive(set, "ttl", &ttl)
	NotNegative(set, "hold", &hold)
	Limit(set, "cpus", &cpus, 1, 64)
	Positive(set, "tail", &tail)
	if got := set.FlagUsages(); got != help {
		t.Errorf("the help is\n%swant\n%s", got, help)
	}
	for _, c := range []struct{ arg, err string }{
		{"--ttl=1h", ""}, {"--ttl=0", "a duration greater than 0"}, {"--ttl=-1h", `invalid argument "-1h" for "--ttl" flag: expected a duration greater than 0`},
		{"--ttl=soon", "must be a duration"}, {"--hold=0s", ""}, {"--hold=-1s", "expected 0s or a longer duration"},
		{"--cpus=1", ""}, {"--cpus=64", ""}, {"--cpus=0", "expected 1 to 64"}, {"--cpus=65", "expected 1 to 64"}, {"--tail=0", "expected 1 or more"}, {"--tail=9", ""},
	} {
		before := []any{ttl, hold, cpus, tail}
		err := set.Parse([]string{c.arg})
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.arg, err, c.err)
		}
		for i, now := range []any{ttl, hold, cpus, tail} {
			if err != nil && now != before[i] {
				t.Errorf("%s: the rejected value changed a variable from %v to %v", c.arg, before[i], now)
			}
		}
	}
}
