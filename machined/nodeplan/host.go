package nodeplan

import (
	"cmp"
	"crypto/ecdsa"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Network returns the network settings of a configuration. It returns the zero Config for nil.
func Network(c *config.Config) network.Config {
	if c == nil {
		return network.Config{}
	}
	s := c.Network.Spec
	out := network.Config{Hostname: c.Machine.Metadata.Name, DNS: s.DNS.Servers, Search: s.DNS.Search, NTP: s.NTP.Servers}
	if s.DNS.TLS != nil {
		out.Stub = StubResolver.Addr()
	}
	for _, name := range s.NTP.Clocks {
		out.Clocks = append(out.Clocks, timesync.ClockPrefix+name)
	}
	for _, l := range s.Links {
		// The parser has checked the MAC. mac is nil if the configuration selects the link by name.
		mac, _ := net.ParseMAC(string(l.MAC))
		one := network.LinkConfig{Name: l.Name, MAC: mac, MTU: l.MTU, DHCP4: l.DHCP4, IPv6: autoconf(l.IPv6), Addresses: l.Addresses, Virtual: virtual(&l), Members: members(&l), Hardware: hardware(&l)}
		if m := l.Match; m != nil {
			one.Match = &network.Match{Name: m.Name, MAC: m.MAC, Driver: m.Driver, Path: m.Path}
		}
		if l.Bridge != nil {
			one.Untagged = l.Bridge.Untagged
		}
		for _, r := range l.Routes {
			one.Routes = append(one.Routes, network.RouteConfig{To: r.To, Via: r.Via, Metric: r.Metric, Table: mainTable(r.Table), Source: r.Source})
		}
		out.Links = append(out.Links, one)
	}
	for _, r := range s.Routes {
		route := network.RouteConfig{To: r.To, Kind: string(r.Type), Metric: r.Metric, Table: mainTable(r.Table)}
		for _, h := range r.NextHops {
			route.Hops = append(route.Hops, network.Hop{Link: h.Link, Via: h.Via, Weight: h.Weight})
		}
		out.Routes = append(out.Routes, route)
	}
	for _, r := range s.Rules {
		out.Rules = append(out.Rules, rules(r)...)
	}
	return out
}

// mainTable converts the number of a routing table to the number that machined/network uses. That
// package writes the main table, 254 in the kernel, as 0.
func mainTable(table uint32) uint32 {
	if table == 254 {
		return 0
	}
	return table
}

// rules converts a configured routing rule to rules of the kernel. A rule without addresses becomes
// two rules, for IPv4 and for IPv6.
func rules(r config.RoutingRule) (out []network.Rule) {
	for _, six := range []bool{false, true} {
		if r.From.IsValid() && r.From.Addr().Is6() != six || r.To.IsValid() && r.To.Addr().Is6() != six {
			continue
		}
		out = append(out, network.Rule{IPv6: six, Priority: uint32(r.Priority), From: condition(r.From), To: condition(r.To), Incoming: r.Incoming, Mark: r.Mark, Table: r.Table})
	}
	return out
}

// autoconf returns the settings of a link for automatic IPv6 configuration: router advertisements,
// DHCPv6 and a delegated prefix. The result is empty if l is nil.
func autoconf(l *config.LinkIPv6) (out network.LinkIPv6) {
	if l == nil {
		return out
	}
	out.AcceptRA = l.AcceptRA
	if use := l.Use(); use != config.DHCP6Off {
		out.DHCP6 = network.DHCP6(use)
	}
	if p := l.Prefix; p != nil {
		out.Prefix = &network.Delegation{Length: p.Length}
		for _, s := range p.Subnets {
			out.Prefix.Subnets = append(out.Prefix.Subnets, network.Subnet{Link: s.Link, Number: uint64(s.Number)})
		}
	}
	return out
}

// condition converts the network of a rule to the form of the kernel. A network of all addresses
// becomes the zero Prefix, because the kernel stores it as a rule without this condition.
func condition(p netip.Prefix) netip.Prefix {
	if p.Bits() == 0 {
		return netip.Prefix{}
	}
	return p
}

// hardware returns the hardware settings of a link, by the names of machined/network. It returns
// nil if none are configured.
func hardware(l *config.Link) map[string]string {
	var out map[string]string
	set := func(name, value string) {
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	h := l.Hardware
	if h == nil {
		return nil
	}
	if h.VirtualFunctions != 0 {
		set(network.HardwareFunctions, strconv.Itoa(h.VirtualFunctions))
	}
	if h.Rings.RX != 0 {
		set(network.HardwareRX, strconv.Itoa(h.Rings.RX))
	}
	if h.Rings.TX != 0 {
		set(network.HardwareTX, strconv.Itoa(h.Rings.TX))
	}
	if h.Pause != "" {
		set(network.HardwarePause, string(h.Pause))
	}
	if h.WakeOnLAN != "" {
		set(network.HardwareWake, string(h.WakeOnLAN))
	}
	for _, o := range h.Offloads.Enable {
		set(network.HardwareOffload+string(o), "on")
	}
	for _, o := range h.Offloads.Disable {
		set(network.HardwareOffload+string(o), "off")
	}
	return out
}

// members returns the selectors of the links that are members of l: the ports of a bridge with
// their VLAN tags, or the links of a bond or of a VRF.
func members(l *config.Link) (out []network.Member) {
	if l.Bridge == nil {
		selectors, _ := l.Members()
		for _, s := range selectors {
			out = append(out, network.Member{Selector: s})
		}
		return out
	}
	for _, p := range l.Bridge.Ports {
		out = append(out, network.Member{Selector: p.Link, Tags: network.Tags(p.VLANs, p.Untagged)})
	}
	return out
}

// virtual returns the definition of a link that the system creates. The result is empty if l is a
// hardware interface.
func virtual(l *config.Link) network.Virtual {
	switch {
	case l.Bond != nil:
		return network.Virtual{Bond: bond(l.Bond)}
	case l.VLAN != nil:
		return network.Virtual{VLAN: &network.VLAN{Parent: l.VLAN.Parent, ID: l.VLAN.ID}}
	case l.Bridge != nil:
		return network.Virtual{Bridge: &network.Bridge{STP: l.Bridge.STP, Filtering: l.Bridge.VLANFiltering}}
	case l.VRF != nil:
		return network.Virtual{VRF: &network.VRF{Table: l.VRF.Table}}
	case l.Dummy:
		return network.Virtual{Dummy: &network.Dummy{}}
	case l.WireGuard != nil:
		return network.Virtual{WireGuard: wireguard(l.WireGuard)}
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

func wireguard(w *config.WireGuard) *network.WireGuard {
	out := &network.WireGuard{Key: secretKey(w.PrivateKey), Port: w.ListenPort}
	for _, p := range w.Peers {
		out.Peers = append(out.Peers, network.Peer{
			Key: p.PublicKey.Bytes(), Preshared: secretKey(p.PresharedKey), Endpoint: p.Endpoint.AddrPort,
			Allowed: slices.Clone(p.AllowedIPs), KeepAlive: time.Duration(p.KeepAlive),
		})
	}
	out.Peers = network.SortPeers(out.Peers)
	return out
}

func secretKey(k config.EncryptionKey) network.SecretKey {
	var key [32]byte
	copy(key[:], k.Bytes())
	return network.NewSecretKey(key)
}

// Host returns the host settings of a configuration (nil for none). identity is the machine key;
// nil if machined has not loaded it yet. previous contains the values that kernel parameters had
// before machined first set them.
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
			// The component orchestrator/podnetwork creates a dummy link for the DNS address.
			out.Modules = append(slices.Clone(out.Modules), "dummy")
		}
		out.ReservedMemory = int64(c.Machine.Spec.Reserved.Memory)
	}
	return out
}
