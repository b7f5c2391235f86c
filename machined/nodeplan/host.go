package nodeplan

import (
	"cmp"
	"crypto/ecdsa"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Network returns the network of a configuration; the zero Config if there is none.
func Network(c *config.Config) network.Config {
	if c == nil {
		return network.Config{}
	}
	s := c.Network.Spec
	out := network.Config{Hostname: c.Machine.Metadata.Name, DNS: s.DNS.Servers, Search: s.DNS.Search, NTP: s.NTP.Servers}
	for _, l := range s.Links {
		// checked by the parser; empty if the configuration selects the link by name
		mac, _ := net.ParseMAC(string(l.MAC))
		one := network.LinkConfig{Name: l.Name, MAC: mac, MTU: l.MTU, DHCP4: l.DHCP4, Addresses: l.Addresses, Virtual: virtual(&l)}
		one.Members, _ = l.Members()
		for _, r := range l.Routes {
			one.Routes = append(one.Routes, network.RouteConfig{To: r.To, Via: r.Via, Metric: r.Metric})
		}
		out.Links = append(out.Links, one)
	}
	return out
}

// virtual returns the definition of a link that the system creates; empty for hardware.
func virtual(l *config.Link) network.Virtual {
	switch {
	case l.Bond != nil:
		return network.Virtual{Bond: bond(l.Bond)}
	case l.VLAN != nil:
		return network.Virtual{VLAN: &network.VLAN{Parent: l.VLAN.Parent, ID: l.VLAN.ID}}
	}
	return network.Virtual{}
}

func bond(b *config.Bond) *network.Bond {
	out := &network.Bond{Mode: string(b.Mode), Hash: string(b.HashPolicy), MinLinks: b.MinLinks, Primary: b.Primary}
	if b.Mode == config.BondLACP {
		out.Rate = string(cmp.Or(b.LACPRate, config.LACPSlow))
	}
	switch {
	case b.MII != nil:
		out.MII, out.Up, out.Down = time.Duration(b.MII.Interval), time.Duration(b.MII.UpDelay), time.Duration(b.MII.DownDelay)
		return out
	case b.ARP == nil:
		out.MII = time.Duration(config.MIIInterval)
		return out
	}
	out.ARP, out.Targets = time.Duration(b.ARP.Interval), slices.SortedFunc(slices.Values(b.ARP.Targets), netip.Addr.Compare)
	return out
}

// Host returns the host settings of a configuration (nil for none). identity is the machine key,
// nil if it is not loaded yet; previous contains the values of kernel parameters from before the
// system first set them.
func Host(c *config.Config, identity *ecdsa.PrivateKey, previous map[string]string) host.Config {
	out := host.Config{PreviousSysctls: previous}
	if identity != nil {
		out.MachineID = host.MachineID(pki.EncodePublicKey(identity))
	}
	if c != nil {
		out.Sysctls, out.Modules = c.Machine.Spec.Sysctls, c.Machine.Spec.KernelModules
		out.Pods = c.Cluster != nil
		out.ServiceProxy = out.Pods && !c.Cluster.Spec.HasExternal(config.PartProxy)
		if out.Pods && c.Cluster.Spec.HasExternal(config.PartNetwork) {
			// for the link with the DNS address (orchestrator/podnetwork)
			out.Modules = append(slices.Clone(out.Modules), "dummy")
		}
		out.ReservedMemory = int64(c.Machine.Spec.Reserved.Memory)
	}
	return out
}
