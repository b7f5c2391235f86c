package hardware

import (
	"net"

	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
)

// LLDPLinks returns the physical Ethernet links that are up. Hardware with a longer address, for
// example InfiniBand, has no LLDP.
func LLDPLinks(s network.State) (out []lldp.Link) {
	for _, l := range s.Links {
		if mac, err := net.ParseMAC(l.MAC); err == nil && len(mac) == 6 && physical(l) && l.Up {
			out = append(out, lldp.Link{Name: l.Name, Index: l.Index, MAC: mac})
		}
	}
	return out
}

// NICs returns the physical links of a network with their neighbors, for the inventory. speed
// returns the speed of a link in Mbit/s.
func NICs(s network.State, neighbors []lldp.Neighbor, speed func(link string) int) (out []inventory.NIC) {
	for _, l := range s.Links {
		if !physical(l) {
			continue
		}
		n := inventory.NIC{Name: l.Name, MAC: l.MAC, Driver: l.Driver, Carrier: l.Carrier, SpeedMbps: speed(l.Name)}
		for _, a := range l.Addresses {
			if ip := a.Prefix.Addr(); ip.IsGlobalUnicast() {
				n.Addresses = append(n.Addresses, ip.WithZone(""))
			}
		}
		for _, seen := range neighbors {
			if seen.Link == l.Name {
				n.Neighbors = append(n.Neighbors, inventory.Neighbor{System: seen.SystemName, Port: seen.Port})
			}
		}
		out = append(out, n)
	}
	return out
}

// physical reports whether a link is hardware, not virtual (bridge, bond, VLAN) and not the
// loopback.
func physical(l network.LinkState) bool { return l.Kind == "" && l.Name != "lo" }
