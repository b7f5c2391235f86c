package nodeplan

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

func TestRouterID(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("2001:db8::11")
	configured := netip.MustParseAddr("192.0.2.1")
	if got := routerID(configured, []netip.Addr{four}); got != configured {
		t.Errorf("the configured one is %s", got)
	}
	if got := routerID(netip.Addr{}, []netip.Addr{six, four}); got != four {
		t.Errorf("the first IPv4 address is %s", got)
	}
	one, other := routerID(netip.Addr{}, []netip.Addr{six}), routerID(netip.Addr{}, []netip.Addr{six.Next()})
	if !one.Is4() || one.IsUnspecified() || one == other {
		t.Errorf("without IPv4: %s and %s", one, other)
	}
}

func TestBGPPasswords(t *testing.T) {
	peer := config.BGPPeer{Address: netip.MustParseAddr("10.0.0.1")}
	for want, c := range map[string]*config.BGP{"": nil, " ": {Peers: []config.BGPPeer{peer}}} {
		if got, err := bgpPasswords(c); got != nil || err != nil {
			t.Errorf("%q: %s, %v", want, got, err)
		}
	}
	peer.Password = config.NewSecret("secret")
	if got, err := bgpPasswords(&config.BGP{Peers: []config.BGPPeer{peer}}); string(got) != `{"10.0.0.1":"secret"}` || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}
