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
		t.Errorf("with a configured router ID: %s", got)
	}
	if got := routerID(netip.Addr{}, []netip.Addr{six, four}); got != four {
		t.Errorf("without a configured router ID: %s, want the IPv4 address", got)
	}
	one, other := routerID(netip.Addr{}, []netip.Addr{six}), routerID(netip.Addr{}, []netip.Addr{six.Next()})
	if !one.Is4() || one.IsUnspecified() || one == other {
		t.Errorf("without an IPv4 address: %s and %s, want two different IDs", one, other)
	}
}

func TestBGPPasswords(t *testing.T) {
	peer := config.BGPPeer{Address: netip.MustParseAddr("10.0.0.1")}
	for name, c := range map[string]*config.BGP{"no BGP": nil, "a peer without a password": {Peers: []config.BGPPeer{peer}}} {
		if got, err := bgpPasswords(c); got != nil || err != nil {
			t.Errorf("%s: %s, %v; want no passwords", name, got, err)
		}
	}
	peer.Password = config.NewSecret("secret")
	if got, err := bgpPasswords(&config.BGP{Peers: []config.BGPPeer{peer}}); string(got) != `{"10.0.0.1":"secret"}` || err != nil {
		t.Errorf("a peer with a password: %s, %v", got, err)
	}
}
