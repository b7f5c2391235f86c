package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// networkValidator checks the Network document.
type networkValidator struct {
	checks
	cfg *Config
}

func (v networkValidator) network(n *Network) {
	const spec = "Network.spec"
	names, macs := map[string]int{}, map[string]int{}
	for i := range n.Spec.Links {
		path, l := fmt.Sprintf("%s.links[%d]", spec, i), &n.Spec.Links[i]
		v.link(path, l)
		v.unique(path+".name", "links", l.Name, i, names)
		v.unique(path+".mac", "links", string(l.MAC), i, macs)
	}
	v.addresses(spec, n.Spec.Links)
	v.limits(spec, reflect.ValueOf(n.Spec))
	v.stack(n.Spec.Links)
	v.routesAndRules(spec, &n.Spec)
	v.resolvers(spec+".dns", &n.Spec.DNS)
	v.ntp(spec+".ntp", n.Spec.NTP)
	if n.Spec.BGP != nil {
		v.bgp(spec+".bgp", n.Spec.BGP)
	}
	if n.Spec.Firewall != nil {
		v.firewall(spec+".firewall", n.Spec.Firewall)
	}
}

// maxClocks is the maximum number of PTP clocks. Usual machines have at most 2.
const maxClocks = 4

// timeServer returns the problem of a time server; nil if there is none.
func (v networkValidator) timeServer(server string) *wrong {
	const want = "the address of a time server"
	if err := hostOrAddr(server); err != nil && server != "" {
		return &wrong{reason: fmt.Sprintf("%s %v", quote(server), err), expected: "a DNS name in lower case or an IP address"}
	}
	a, err := netip.ParseAddr(server)
	switch {
	case err == nil:
		w := cmp.Or(serverProblem(a), v.cfg.remoteProblem(a, "time server"))
		if w != nil {
			w.expected = want
		}
		return w
	case server == "localhost" || strings.HasSuffix(server, ".localhost"): // RFC 6761
		return &wrong{reason: server + " is this machine, where no time server runs", expected: want}
	}
	return nil
}

// ntp validates the time servers and the PTP clocks.
func (v networkValidator) ntp(at string, n NTP) {
	seen := map[string]int{}
	for i, server := range n.Servers {
		path := fmt.Sprintf("%s.servers[%d]", at, i)
		if w := v.timeServer(server); w != nil {
			v.on(path, *w)
		}
		v.unique(path, "servers", server, i, seen)
	}
	if n.NTS != nil {
		if len(n.Servers) == 0 && !v.broken[at+".servers"] {
			v.on(at+".nts", wrong{reason: "servers is empty, and time servers from DHCP are not used with NTS", expected: "time servers in servers"})
		}
		v.bundle(at+".nts.ca", n.NTS.CA)
	}
	if len(n.Clocks) > maxClocks {
		v.on(at+".clocks", wrong{reason: fmt.Sprintf("%d clocks", len(n.Clocks)), expected: fmt.Sprintf("at most %d", maxClocks)})
	}
	names := map[string]int{}
	for i, name := range n.Clocks {
		path := fmt.Sprintf("%s.clocks[%d]", at, i)
		if name == "" || len(name) > 64 || strings.TrimSpace(name) != name || slices.ContainsFunc([]rune(name), func(r rune) bool { return r < ' ' || r > '~' }) {
			v.on(path, wrong{reason: quote(name) + " is not the name of a PTP clock", expected: `the text of /sys/class/ptp/*/clock_name, such as "KVM virtual PTP" or hyperv`})
		}
		v.unique(path, "clocks", name, i, names)
	}
}

// addresses checks that no two links have the same address. But links in different VRFs may have
// the same address, and any two links may have the same IPv6 link-local address.
func (v networkValidator) addresses(spec string, links []Link) {
	type place struct {
		scope string
		addr  netip.Addr
	}
	seen := map[place]string{}
	for i := range links {
		vrf := vrfOf(links, &links[i])
		for j, a := range links[i].Addresses {
			if !a.IsValid() {
				continue
			}
			at, key := fmt.Sprintf("%s.links[%d].addresses[%d]", spec, i, j), place{vrf, a.Addr()}
			if a.Addr().IsLinkLocalUnicast() && a.Addr().Is6() {
				key.scope = fmt.Sprintf("links[%d]", i)
			}
			if first, twice := seen[key]; twice {
				v.on(at, wrong{reason: fmt.Sprintf("%s is also in %s", a.Addr(), first), expected: "each address once"})
				continue
			}
			seen[key] = at
		}
	}
}

func (v networkValidator) firewall(path string, f *Firewall) {
	if c := v.cfg.Cluster; c != nil && c.Spec.HasExternal(PartNetwork) {
		v.on(path, wrong{
			reason: "the pod network is external (Cluster.spec.external), so the firewall does not know its links",
			hint:   "restrict access in the external network",
		})
	}
	type portProtocol struct {
		port     int
		protocol Transport
	}
	seen := map[portProtocol]int{}
	for i, r := range f.Allow {
		at := fmt.Sprintf("%s.allow[%d]", path, i)
		if r.Port < 1 || r.Port > 65535 {
			v.on(at+".port", wrong{reason: fmt.Sprintf("%d is no port", r.Port), expected: "1 to 65535"})
		}
		if j, twice := seen[portProtocol{r.Port, r.Protocol}]; twice && !v.broken[at+".protocol"] {
			v.on(at+".port", wrong{reason: fmt.Sprintf("%s port %d is also in allow[%d]", r.Protocol, r.Port, j), expected: "each port once, with all networks in from"})
		}
		seen[portProtocol{r.Port, r.Protocol}] = i
		if len(r.From) == 0 {
			v.on(at+".from", wrong{reason: "is empty", expected: "at least one network; 0.0.0.0/0 and ::/0 admit all hosts"})
		}
		v.sources(at+".from", r.From)
	}
}

func (v networkValidator) link(path string, l *Link) {
	switch {
	case l.Name == "" && l.MAC == "" && l.Match == nil && !v.broken[path+".name"] && !v.broken[path+".mac"] && !v.broken[path+".match"]:
		v.on(path, wrong{reason: "the link has neither name nor mac nor match", expected: "one of them"})
	case l.Name != "" && l.MAC != "":
		v.on(path+".mac", wrong{reason: "the link has a name already", expected: "name or mac, not both"})
	case l.Match != nil && (l.Name != "" || l.MAC != ""):
		v.on(path+".match", wrong{reason: "the link has a name or a mac already", expected: "one of name, mac and match"})
	}
	v.hardware(path, l)
	v.linkName(path+".name", l.Name, l.Definition())
	v.noPattern(path+".name", l.Name)
	v.definition(path, l)
	v4, v6 := false, false
	for i, a := range l.Addresses {
		at := fmt.Sprintf("%s.addresses[%d]", path, i)
		v.address(at, a)
		if !a.IsValid() {
			continue
		}
		v4, v6 = v4 || a.Addr().Is4(), v6 || !a.Addr().Is4()
		if l.DHCP4 && a.Addr().Is4() {
			v.on(at, wrong{reason: "a static IPv4 address on a link with dhcp4: true", expected: "one or the other"})
		}
	}
	if l.IPv6 != nil {
		v6 = true
		v.autoconf(path+".ipv6", l)
	}
	v.mtu(path+".mtu", l.MTU, v6)
	v.parentMTU(path, l, v6)
	type destination struct {
		to     netip.Prefix
		metric uint32
		table  uint32
	}
	seen := map[destination]int{}
	for i, r := range l.Routes {
		at := fmt.Sprintf("%s.routes[%d]", path, i)
		v.route(at, l, r)
		d := destination{r.To, r.Metric, r.Table}
		if j, twice := seen[d]; twice && r.To.IsValid() {
			v.on(at+".to", wrong{reason: fmt.Sprintf("%s with metric %d is also in routes[%d]", r.To, r.Metric, j), expected: "each destination once per metric"})
			continue
		}
		seen[d] = i
	}
}

// autoconf validates the settings for router advertisements, DHCPv6 and delegated prefixes.
func (v networkValidator) autoconf(path string, l *Link) {
	auto := l.IPv6
	if auto.DHCP == DHCP6Auto && !auto.AcceptRA {
		v.on(path+".dhcp", wrong{reason: "without router advertisements, no flags say what to request", expected: "acceptRA: true, or stateless, stateful or off"})
	}
	if auto.Prefix == nil {
		return
	}
	seen := map[int]int{}
	for i, s := range auto.Prefix.Subnets {
		at := fmt.Sprintf("%s.prefix.subnets[%d]", path, i)
		target := v.cfg.linkByName(s.Link)
		switch {
		case s.Link == "" || v.broken[at+".link"]:
		case target == nil:
			v.on(at+".link", wrong{reason: fmt.Sprintf("no entry of links has the name %s", quote(s.Link)), expected: "the name of an entry of links"})
		case target == l:
			v.on(at+".link", wrong{reason: "the prefix comes from this link", expected: "another link (RFC 8415 section 6.3)"})
		}
		if count := 1 << (64 - min(max(auto.Prefix.Length, 48), 64)); s.Number >= count && s.Number <= 65535 {
			v.on(at+".number", wrong{reason: fmt.Sprintf("a prefix of /%d has no subnet %d", auto.Prefix.Length, s.Number), expected: fmt.Sprintf("0 to %d", count-1)})
		}
		if j, twice := seen[s.Number]; twice {
			v.on(at+".number", wrong{reason: fmt.Sprintf("subnet %d is also in subnets[%d]", s.Number, j), expected: "each subnet once"})
			continue
		}
		seen[s.Number] = i
	}
}

// linkByName returns the link with a name; nil if no link has the name.
func (c *Config) linkByName(name string) *Link {
	for i := range c.Network.Spec.Links {
		if l := &c.Network.Spec.Links[i]; l.Name == name && name != "" {
			return l
		}
	}
	return nil
}

// linkName validates an interface name by the rules of the kernel (dev_valid_name in
// net/core/dev.c). It also rejects "%", because the kernel replaces "%d" in the name of a new link
// by a number. definition is the field that defines the link; "" means that the link is hardware.
func (v networkValidator) linkName(path, name, definition string) {
	if name == "" {
		return
	}
	const want = `at most 15 bytes, without spaces, "/", ":" and "%"`
	switch {
	case len(name) > 15:
		v.on(path, wrong{reason: fmt.Sprintf("%s has %d bytes", quote(name), len(name)), expected: want})
	case name == "." || name == ".." || strings.ContainsAny(name, "/:% \t\n\v\f\r") || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }):
		v.on(path, wrong{reason: fmt.Sprintf("%s is not the name of a link", quote(name)), expected: want})
	case name == "lo":
		v.on(path, wrong{reason: "the loopback link cannot be configured", expected: "a physical link, such as eth0"})
	case name == "bonding_masters":
		v.on(path, wrong{reason: fmt.Sprintf("%s is a file of the kernel among the links (/sys/class/net)", quote(name)), expected: "another name"})
	case systemLinks[name] != "":
		v.on(path, wrong{reason: fmt.Sprintf("%s is a link of %s", quote(name), systemLinks[name]), expected: "another name"})
	case definition == "" && virtualLinkKind(name) != "":
		v.on(path, wrong{reason: fmt.Sprintf("%s would be %s, and no link defines it", quote(name), virtualLinkKind(name)), expected: "the name of a network card, such as eth0 (`orlopctl get network` lists them), or a link with this name and a definition, such as bond or vlan"})
	case name == "all" || name == "default":
		v.on(path, wrong{reason: fmt.Sprintf("in kernel parameters, %s stands for more than one link, so no link can have this name", quote(name)), expected: "one link, such as eth0"})
	}
}

// noPattern rejects a pattern in a field that must name a single link.
func (v networkValidator) noPattern(path, name string) {
	if strings.ContainsAny(name, "*?[") {
		v.on(path, wrong{reason: fmt.Sprintf("%s is a pattern", quote(name)), expected: "one name, or a pattern in match.name"})
	}
}

// virtualLinkPrefixes are the prefixes that names of virtual links usually have, by the defaults of
// systemd, Debian, ip-link(8) and common programs, with the type of link. Names of network cards
// have none of these prefixes (net.ifnames: eth0, eno1, ens3, enp0s3, enx…, usb0, ib0).
var virtualLinkPrefixes = []struct{ prefix, kind string }{
	{"bond", "a bond of several links"}, {"team", "a team of several links"}, {"vlan", "a VLAN"}, {"vxlan", "a VXLAN"}, {"br", "a bridge"},
	{"wg", "a WireGuard tunnel"}, {"dummy", "a dummy link"}, {"veth", "one end of a veth pair"}, {"macvlan", "a MACVLAN"}, {"ipvlan", "an IPVLAN"},
	{"tun", "a tunnel"}, {"tap", "a tap of a virtual machine"}, {"gre", "a GRE tunnel"}, {"sit", "a tunnel"}, {"tunl", "a tunnel"}, {"ip6tnl", "a tunnel"}, {"ppp", "a PPP session"},
	{"vmbr", "a bridge"}, {"virbr", "a bridge"}, {"docker", "a bridge"},
}

// virtualLinkKind returns the type of virtual link that usually has this name; "" if the name can
// be that of a network card.
func virtualLinkKind(name string) string {
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	if parent, id, dotted := strings.Cut(name, "."); dotted && parent != "" && digits(id) {
		return "a VLAN of " + parent
	}
	for _, m := range virtualLinkPrefixes {
		if number, is := strings.CutPrefix(name, m.prefix); is && (digits(number) || number == "") {
			return m.kind
		}
	}
	return ""
}

// minMTU6 is the minimum MTU of a link with IPv6 (RFC 8200). ethernetMTU is the MTU of a new bond
// or dummy link (machined/network).
const (
	minMTU6     = 1280
	ethernetMTU = 1500
)

func (v networkValidator) mtu(path string, mtu int, v6 bool) {
	least := 68
	if v6 {
		least = minMTU6
	}
	if (mtu == 0 && v.origins[path].IsDefault()) || (mtu >= least && mtu <= 65535) {
		return
	}
	w := wrong{reason: fmt.Sprintf("%d is out of range", mtu), expected: fmt.Sprintf("%d to 65535", least)}
	if v6 && mtu >= 68 && mtu < least {
		w.hint = "the link has an IPv6 address, which needs 1280 (RFC 8200)"
	}
	v.on(path, w)
}

// address checks that an address can be assigned to a machine.
func (v networkValidator) address(path string, a netip.Prefix) {
	if !a.IsValid() {
		return
	}
	addr := a.Addr()
	w := wrong{expected: "an address that one machine can have, with its prefix length"}
	switch {
	case addr.Is4In6():
		w.reason = fmt.Sprintf("%s is an IPv4 address written as IPv6", a)
	case addr.IsUnspecified(), addr.IsLoopback(), addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		w.reason = fmt.Sprintf("%s cannot be a link's address", addr)
	case a.Bits() == 0:
		w.reason = "the prefix length is 0, so all addresses would be on this link"
	case addr.BitLen()-a.Bits() >= 2 && a.Masked().Addr() == addr:
		w.reason = fmt.Sprintf("%s is the network itself, not an address in it", a)
	case addr.Is4() && addr.BitLen()-a.Bits() >= 2 && lastAddress(a) == addr:
		w.reason = fmt.Sprintf("%s is the broadcast address of its network", a)
	default:
		return
	}
	v.on(path, w)
}

// destination validates the destination of a route.
func (v networkValidator) destination(path string, to netip.Prefix) {
	switch {
	case !to.IsValid():
	case to.Addr().Is4In6():
		v.on(path, mapped(to))
	case to.Masked() != to:
		v.on(path, wrong{reason: fmt.Sprintf("%s is an address in a network, not a network", to), expected: "a network", nearest: to.Masked().String()})
	case to.Addr().IsMulticast() || to.Addr().IsLoopback():
		v.on(path, wrong{reason: fmt.Sprintf("%s cannot be routed", to), expected: "a unicast network"})
	}
}

func (v networkValidator) route(path string, l *Link, r Route) {
	v.destination(path+".to", r.To)
	if r.To.IsValid() && r.To.Addr().Is4In6() {
		return
	}
	if r.Table != 0 {
		v.table(path+".table", r.Table)
	}
	switch source := r.Source; {
	case !source.IsValid():
	case r.To.IsValid() && r.To.Addr().Is4() != source.Is4():
		v.on(path+".source", wrong{reason: fmt.Sprintf("%s is not of the family of %s", source, r.To), expected: "an address of the same family"})
	case v.cfg.ownAddress(source) == "" && !v.addressesUnknown(path, l):
		v.on(path+".source", wrong{reason: fmt.Sprintf("%s is in no link's addresses", source), expected: "a configured address of the machine"})
	}
	via := r.Via
	if !via.IsValid() {
		v.onLink(path, l, r.To)
		return
	}
	switch {
	case via.Is4In6() || via.IsUnspecified() || via.IsMulticast() || via.IsLoopback():
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s cannot be a gateway", via), expected: "the address of a router on this link"})
	case via.Zone() != "":
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s has a zone", via), expected: "the address alone: the link is known", nearest: via.WithZone("").String()})
	case r.To.IsValid() && r.To.Addr().Is4() != via.Is4():
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s is not of the family of %s", via, r.To), expected: "a gateway of the same family"})
	case l.has(via):
		v.on(path+".via", wrong{reason: fmt.Sprintf("%s is the machine's own address", via), expected: "the address of a router on this link"})
	case l.noHost(via):
		v.on(path+".via", noGateway(via))
	case !l.reaches(via) && !v.addressesUnknown(path, l):
		w := wrong{reason: fmt.Sprintf("the gateway %s is on none of the link's networks", via), expected: "a gateway that the link reaches directly"}
		host := netip.PrefixFrom(via, via.BitLen())
		if nets := l.networks(); len(nets) > 0 {
			w.expected += ", in " + oneOf(nets)
			w.hint = fmt.Sprintf("if it is on this link nevertheless, add a route to it: {to: %s}", host)
		} else {
			w.hint = "the link has no address"
		}
		v.on(path+".via", w)
	}
}

// onLink validates an IPv4 route without a gateway: its packets and ARP requests need a source
// address on the link. A WireGuard link needs no address, because it sends no ARP requests and the
// kernel uses the address of another link.
func (v networkValidator) onLink(path string, l *Link, to netip.Prefix) {
	if !to.IsValid() || !to.Addr().Is4() || l.DHCP4 || l.WireGuard != nil || v.addressesUnknown(path, l) || v.broken[path+".via"] {
		return
	}
	for _, a := range l.Addresses {
		if a.Addr().Is4() {
			return
		}
	}
	v.on(path, wrong{reason: "the link has no IPv4 address to send from", expected: "an address of the route's family on the link"})
}

// addressesUnknown reports whether the networks of the link are unknown, because its fields
// addresses or dhcp4 could not be parsed. path is the path of a route of the link.
func (v networkValidator) addressesUnknown(path string, l *Link) bool {
	link := parent(parent(path))
	for i := range l.Addresses {
		if v.broken[fmt.Sprintf("%s.addresses[%d]", link, i)] {
			return true
		}
	}
	return v.broken[link+".addresses"] || v.broken[link+".dhcp4"]
}

// has reports whether the link has the address.
func (l *Link) has(addr netip.Addr) bool {
	for _, a := range l.Addresses {
		if a.Addr() == addr {
			return true
		}
	}
	return false
}

// noHost reports whether an IPv4 address is the network or broadcast address of a network of the
// link, which no router has. The kernel rejects a route by a broadcast address. A /31 has two host
// addresses (RFC 3021).
func (l *Link) noHost(addr netip.Addr) bool {
	return slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool {
		return a.IsValid() && a.Addr().Is4() && addr.Is4() && a.Bits() < 31 && (a.Masked().Addr() == addr || lastAddress(a) == addr)
	})
}

// remoteProblem returns the problem of the address of a server if no other machine can have this
// address: this machine has it, or noHost is true for it. server is the kind of server.
func (c *Config) remoteProblem(addr netip.Addr, server string) *wrong {
	expected := "the address of a " + server
	if own := c.ownAddress(addr); own != "" {
		return &wrong{reason: fmt.Sprintf("%s is the machine's own (%s), where no %s runs", addr, own, server), expected: expected}
	}
	if slices.ContainsFunc(c.Network.Spec.Links, func(l Link) bool { return l.noHost(addr) }) {
		return &wrong{reason: fmt.Sprintf("%s is the network or broadcast address of a link's network", addr), expected: expected}
	}
	return nil
}

// noGateway is the problem of a gateway for which noHost is true.
func noGateway(via netip.Addr) wrong {
	return wrong{reason: fmt.Sprintf("%s is the network or broadcast address of the link's network", via), expected: "the address of a router on this link"}
}

// reaches reports whether the link can reach a gateway directly. The gateway must be in a network
// of the link, or in the destination of one of the link's routes that have no gateway, or be
// link-local (RFC 4291: every link has a link-local address). On a link with DHCP or router
// advertisements, the networks are unknown, so every gateway of the family is accepted.
func (l *Link) reaches(via netip.Addr) bool {
	if via.Is4() && l.DHCP4 || via.Is6() && l.IPv6 != nil || via.Is6() && via.IsLinkLocalUnicast() {
		return true
	}
	for _, a := range l.Addresses {
		if a.IsValid() && a.Contains(via) {
			return true
		}
	}
	return slices.ContainsFunc(l.Routes, func(r Route) bool { return !r.Via.IsValid() && r.To.IsValid() && r.To.Contains(via) })
}

func (l *Link) networks() []string {
	var all []string
	for _, a := range l.Addresses {
		if a.IsValid() {
			all = append(all, a.Masked().String())
		}
	}
	return all
}

func (v networkValidator) resolvers(path string, d *DNS) {
	if len(d.Servers) > 3 {
		v.on(path+".servers", wrong{reason: fmt.Sprintf("%d servers", len(d.Servers)), expected: "at most 3 (MAXNS in resolv.h)"})
	}
	seen := map[string]int{}
	for i, server := range d.Servers {
		at := fmt.Sprintf("%s.servers[%d]", path, i)
		if !server.IsValid() {
			continue
		}
		if w := cmp.Or(resolverProblem(server), v.cfg.remoteProblem(server, "resolver")); w != nil {
			v.on(at, *w)
		}
		v.unique(at, "servers", server.String(), i, seen)
	}
	if d.TLS != nil {
		v.resolverTLS(path, d)
	}
	if len(d.Search) > 6 {
		v.on(path+".search", wrong{reason: fmt.Sprintf("%d domains", len(d.Search)), expected: "at most 6 (MAXDNSRCH in resolv.h)"})
	}
	domains := map[string]int{}
	for i, domain := range d.Search {
		at := fmt.Sprintf("%s.search[%d]", path, i)
		if err := hostname(domain); err != nil && domain != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s %v", quote(domain), err), expected: "a DNS domain in lower case"})
		}
		v.unique(at, "search", domain, i, domains)
	}
}

// resolverTLS validates the settings for DNS over TLS. With TLS, the machine does not use the
// resolvers that DHCP gives.
func (v networkValidator) resolverTLS(path string, d *DNS) {
	at := path + ".tls"
	if len(d.Servers) == 0 && !v.broken[path+".servers"] {
		v.on(at, wrong{reason: "servers is empty, and resolvers from DHCP are not used with TLS", expected: "resolvers in servers"})
	}
	if d.TLS.ServerName != "" {
		if err := hostOrAddr(d.TLS.ServerName); err != nil {
			v.on(at+".serverName", wrong{reason: fmt.Sprintf("%s %v", quote(d.TLS.ServerName), err), expected: "the DNS name in the certificates, in lower case"})
		}
	}
	v.bundle(at+".ca", d.TLS.CA)
	if c := v.cfg.Cluster; c != nil && c.Spec.HasExternal(PartDNS) {
		v.on(at, wrong{
			reason: "the cluster DNS is external (Cluster.spec.external), and would get no resolver from the machine",
			hint:   "use the built-in DNS, or resolvers without TLS",
		})
	}
}
