package config

import (
	"reflect"
	"testing"
	"time"
)

func TestLimitsOfFields(t *testing.T) {
	for _, c := range []struct {
		limits string
		value  any
		want   bool
	}{
		{"1 to 100", 0, false},
		{"1 to 100", 1, true},
		{"1 to 100", 100, true},
		{"1 to 100", 101, false},
		{"1 to 253, the addresses of the machine's /24", 253, true},
		{"1 to 253, the addresses of the machine's /24", 0, false},
		{"10m to 168h, or 0s for none", Duration(0), true},
		{"10m to 168h, or 0s for none", Duration(10*time.Minute - 1), false},
		{"10m to 168h, or 0s for none", Duration(10 * time.Minute), true},
		{"0s to 1h", Duration(0), true},
		{"0s to 1h", Duration(-1), false},
		{"0s to 1h", Duration(time.Hour), true},
		{"0s to 1h", Duration(time.Hour + 1), false},
		{"whole seconds, 10s to 24h", Duration(10500 * time.Millisecond), false},
		{"whole seconds, 10s to 24h", Duration(11 * time.Second), true},
		{"whole MiB, 1MiB to 1GiB", Bytes(1<<20 + 1<<10), false},
		{"whole MiB, 1MiB to 1GiB", Bytes(1 << 30), true},
		{"whole cakes, 1 to 2", 1, false},
		{"1 or 2", 1, false},
		{"1m to 2m", 1, false},
		{"1 to 2", "1", false},
	} {
		if got := withinLimits(c.limits, reflect.ValueOf(c.value)); got != c.want {
			t.Errorf("%v within %q: %t", c.value, c.limits, got)
		}
	}
}
