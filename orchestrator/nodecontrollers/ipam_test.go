package nodecontrollers

import (
	"net/netip"
	"slices"
	"testing"
)

// TestMasks checks the prefix length of the part that a node gets of each pod range. A range that
// is smaller than this part goes to a single node.
func TestMasks(t *testing.T) {
	ranges := []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.9.8.0/26"),
		netip.MustParsePrefix("fd00::/48"), netip.MustParsePrefix("fd00::/112"),
	}
	if got, want := masks(ranges), []int{24, 26, 64, 112}; !slices.Equal(got, want) {
		t.Errorf("prefix lengths of the nodes in %v: %v, want %v", ranges, got, want)
	}
}

func TestNetworks(t *testing.T) {
	got := networks([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/16"), netip.MustParsePrefix("fd00::1/48")})
	if len(got) != 2 || got[0].String() != "10.244.0.0/16" || got[1].String() != "fd00::/48" {
		t.Errorf("%v", got)
	}
}
