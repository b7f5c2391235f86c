package converge

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestAwaitNetwork checks that AwaitNetwork waits until the network has converged to the new
// configuration, and does not accept the network of the previous configuration.
func TestAwaitNetwork(t *testing.T) {
	c := config.New("n1", config.RoleWorker)
	c.Network.Spec.Links = []config.Link{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}}
	of := Network{Config: cell.New(network.Config{}), State: cell.New(network.State{Converged: true, Revision: 1})}
	r := New(Deps{Domains: Domains{Network: of}})
	soon := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), 50*time.Millisecond)
	}
	for range 2 {
		ctx, cancel := soon()
		if err := r.AwaitNetwork(ctx, c); err == nil {
			t.Error("AwaitNetwork accepts the network of the previous configuration")
		}
		cancel()
		of.Config.Set(nodeplan.Network(c)) // the new configuration is wanted, and not yet converged
	}
	_, revision := of.Config.Get()
	of.State.Set(network.State{Converged: true, Revision: revision})
	if err := r.AwaitNetwork(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// TestNetworkReady checks that the network is not ready while operations remain, or while a link
// waits for its lease or for a router advertisement.
func TestNetworkReady(t *testing.T) {
	address := network.AddressState{Prefix: netip.MustParsePrefix("10.0.0.5/24")}
	with := network.LinkState{Managed: true, Up: true, Addresses: []network.AddressState{address}, DHCP: &network.DHCPState{Lease: &dhcp.Lease{Address: address.Prefix}}}
	static := network.LinkState{Managed: true, Up: true, Addresses: []network.AddressState{address}}
	without := network.LinkState{Managed: true, Up: true, Carrier: true, DHCP: &network.DHCPState{Phase: "selecting"}}
	unplugged := network.LinkState{Managed: true, Up: true, DHCP: &network.DHCPState{Phase: "init"}}
	named := network.Config{Links: []network.LinkConfig{{Name: "eth0", DHCP4: true}}}
	soliciting := network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: []network.AddressState{address}, DHCP6: &network.DHCP6State{Phase: "soliciting"}}
	bare := network.LinkState{Managed: true, Up: true, Carrier: true}
	advertised := network.Config{Links: []network.LinkConfig{{Name: "eth0", IPv6: network.LinkIPv6{AcceptRA: true}}}}
	for name, test := range map[string]struct {
		config    network.Config
		links     []network.LinkState
		converged bool
		want      bool
	}{
		"a lease":                                      {named, []network.LinkState{with}, true, true},
		"a static address":                             {named, []network.LinkState{static}, true, true},
		"no lease":                                     {named, []network.LinkState{without}, true, false},
		"one lease of two":                             {named, []network.LinkState{with, without}, true, false},
		"one lease, one without a cable":               {named, []network.LinkState{with, unplugged}, true, true},
		"operations remain":                            {named, []network.LinkState{with}, false, false},
		"no lease of DHCPv6":                           {named, []network.LinkState{soliciting}, true, false},
		"no router advertisement":                      {advertised, []network.LinkState{bare}, true, false},
		"a router advertisement":                       {advertised, []network.LinkState{static}, true, true},
		"no link is configured, one link has a lease":  {network.Config{}, []network.LinkState{without, with}, true, true},
		"no link is configured, no link has a lease":   {network.Config{}, []network.LinkState{without}, true, false},
		"no link is configured, and operations remain": {network.Config{}, []network.LinkState{with}, false, false},
	} {
		if got := networkReady(network.State{Converged: test.converged, Links: test.links}, test.config); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
