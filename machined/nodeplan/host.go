package nodeplan

import (
	"crypto/ecdsa"
	"net"
	"slices"

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
		one := network.LinkConfig{Name: l.Name, MAC: mac, MTU: l.MTU, DHCP4: l.DHCP4, Addresses: l.Addresses}
		for _, r := range l.Routes {
			one.Routes = append(one.Routes, network.RouteConfig{To: r.To, Via: r.Via, Metric: r.Metric})
		}
		out.Links = append(out.Links, one)
	}
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
