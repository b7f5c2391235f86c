package nodeplan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestSelectors checks that the configuration check for missing hardware (transition.LinkSelectors)
// and the network plan use the same name for each piece of hardware. If the names differed, the
// check would never find the hardware missing.
func TestSelectors(t *testing.T) {
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	known := transition.LinkSelectors(c)
	missing := network.Missing(Network(c), network.Facts{})
	slices.Sort(known)
	slices.Sort(missing)
	if got := slices.Compact(known); !slices.Equal(got, missing) || len(missing) < 10 {
		t.Errorf("LinkSelectors returns %q, and Missing returns %q; want the same names, at least 10", got, missing)
	}
}

// TestAnyNetwork checks that a rule with a network of all addresses becomes a rule without this
// condition. The kernel reports such a rule without a network, so any other form would always
// differ from the kernel's state.
func TestAnyNetwork(t *testing.T) {
	for _, test := range []struct {
		rule config.RoutingRule
		want []network.Rule
	}{
		{config.RoutingRule{Priority: 5, Table: 100}, []network.Rule{{Priority: 5, Table: 100}, {IPv6: true, Priority: 5, Table: 100}}},
		{config.RoutingRule{Priority: 5, From: netip.MustParsePrefix("0.0.0.0/0"), Table: 100}, []network.Rule{{Priority: 5, Table: 100}}},
		{config.RoutingRule{Priority: 5, From: netip.MustParsePrefix("fd00::/8"), To: netip.MustParsePrefix("::/0"), Table: 100},
			[]network.Rule{{IPv6: true, Priority: 5, From: netip.MustParsePrefix("fd00::/8"), Table: 100}}},
	} {
		if got := rules(test.rule); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v, want %v", test.rule, got, test.want)
		}
	}
}
