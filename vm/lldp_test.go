package vm

import (
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// TestLLDPFrame decodes an announcement of the switch with gopacket.
func TestLLDPFrame(t *testing.T) {
	p := gopacket.NewPacket(lldpFrame("leaf1", "m1", 100).eth(), layers.LayerTypeEthernet, gopacket.Default)
	core, _ := p.Layer(layers.LayerTypeLinkLayerDiscovery).(*layers.LinkLayerDiscovery)
	info, _ := p.Layer(layers.LayerTypeLinkLayerDiscoveryInfo).(*layers.LinkLayerDiscoveryInfo)
	if core == nil || info == nil {
		t.Fatalf("the frame is not an LLDP announcement: %v", p)
	}
	vlan, err := info.Decode8021()
	if err != nil || vlan.PVID != 100 || string(core.PortID.ID) != "m1" || core.TTL != lldpTTL || info.SysName != "leaf1" || !info.SysCapabilities.EnabledCap.Bridge {
		t.Errorf("a field of the announcement is wrong: %+v, %+v, %+v, %v", core, info, vlan, err)
	}
}

// TestLLDP checks that a port receives announcements if the switch has a name.
func TestLLDP(t *testing.T) {
	n, err := NewNetwork(NetworkSpec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	p := plugTest(t, n, "m1")
	n.SetLLDP("leaf1")
	for {
		select {
		case eth := <-p.frames:
			if macAddr(eth[:6]) == lldpGroup && macAddr(eth[6:12]) == switchSystem {
				return
			}
		case <-t.Context().Done():
			t.Fatal("the port received no announcement")
		}
	}
}
