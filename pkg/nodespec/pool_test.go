package nodespec

import (
	"net/netip"
	"testing"
)

func TestPoolContains(t *testing.T) {
	pool := Pool{Ranges: []Range{
		{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.12")},
		{netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("2001:db8::12")},
	}}
	for text, want := range map[string]bool{
		"192.0.2.9": false, "192.0.2.10": true, "192.0.2.11": true, "192.0.2.12": true, "192.0.2.13": false,
		"2001:db8::f": false, "2001:db8::10": true, "2001:db8::12": true, "2001:db8::13": false, "::ffff:192.0.2.11": false,
	} {
		if got := pool.Contains(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
