package hardware

import (
	"net"
	"net/netip"
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
)

// TestNICs checks the network interfaces of the inventory: physical links only, without link-local
// addresses, and with speed and LLDP neighbors.
func TestNICs(t *testing.T) {
	s := network.State{Links: []network.LinkState{
		{Name: "lo", Addresses: []network.AddressState{{Prefix: netip.MustParsePrefix("127.0.0.1/8")}}},
		{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "virtio_net", Carrier: true, Addresses: []network.AddressState{
			{Prefix: netip.MustParsePrefix("10.77.0.12/24")}, {Prefix: netip.MustParsePrefix("fe80::1/64")}, {Prefix: netip.MustParsePrefix("fd00::1/64")}}},
		{Name: "bond0", Kind: "bond"},
		{Name: "eth1", MAC: "52:54:00:00:00:02"},
	}}
	got := NICs(s, []lldp.Neighbor{{Link: "eth0", SystemName: "leaf1", Port: "swp1"}, {Link: "eth9"}}, func(link string) int { return map[string]int{"eth0": 10000}[link] })
	want := []inventory.NIC{
		{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "virtio_net", Carrier: true, SpeedMbps: 10000,
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.12"), netip.MustParseAddr("fd00::1")}, Neighbors: []inventory.Neighbor{{System: "leaf1", Port: "swp1"}}},
		{Name: "eth1", MAC: "52:54:00:00:00:02"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLLDPLinks checks that LLDP runs only on physical Ethernet links that are up.
func TestLLDPLinks(t *testing.T) {
	got := LLDPLinks(network.State{Links: []network.LinkState{
		{Name: "lo", Index: 1, MAC: "00:00:00:00:00:00", Up: true},
		{Name: "eth0", Index: 2, MAC: "52:54:00:00:00:01", Up: true},
		{Name: "eth1", Index: 3, MAC: "52:54:00:00:00:02"},
		{Name: "bond0", Index: 4, MAC: "52:54:00:00:00:01", Kind: "bond", Up: true},
		{Name: "ib0", Index: 5, MAC: "80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:7b:cb:a1", Up: true},
		{Name: "tun0", Index: 6, Up: true},
	}})
	want := []lldp.Link{{Name: "eth0", Index: 2, MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
