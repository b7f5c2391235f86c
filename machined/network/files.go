package network

import (
	"net/netip"
	"slices"
	"strings"
)

// maxServers is the number of name servers that a C resolver uses (resolv.conf(5), MAXNS).
const maxServers = 3

// Resolver is the configuration of name resolution.
type Resolver struct {
	Servers []netip.Addr
	Search  []string
}

// planResolver returns the configured name servers and the configured search domains. In place of
// each unconfigured list, it returns the values from leases and router advertisements, in order of
// preference.
func planResolver(c Config, f Facts, links []WantLink) Resolver {
	r := Resolver{Servers: c.DNS, Search: c.Search}
	for _, s := range settings(f, links) {
		if len(c.DNS) == 0 {
			r.Servers = appendNew(r.Servers, s.dns...)
		}
		if len(c.Search) == 0 {
			r.Search = appendNew(r.Search, s.search...)
		}
	}
	return r
}

// planFiles returns the contents of the files of name resolution.
func planFiles(c Config, f Facts, w Want) Files {
	resolver := planResolver(c, f, w.Links)
	if c.Stub.IsValid() {
		resolver.Servers = []netip.Addr{c.Stub}
	}
	return Files{
		ResolvConf: resolvConf(resolver),
		Hosts:      hosts(w),
		Hostname:   w.Hostname + "\n",
	}
}

// resolvConf returns the content of resolv.conf.
func resolvConf(r Resolver) string {
	var b strings.Builder
	if len(r.Servers) == 0 {
		b.WriteString("# no name server is known\n")
	}
	if len(r.Servers) > 1 {
		// The C resolver waits 2 seconds for a server before it queries the next server, in each of
		// two attempts. The default is 5 seconds (resolv.conf(5)).
		b.WriteString("options timeout:2\n")
	}
	for i, s := range r.Servers {
		if i == maxServers {
			break
		}
		b.WriteString("nameserver " + s.String() + "\n")
	}
	if len(r.Search) > 0 {
		b.WriteString("search " + strings.Join(r.Search, " ") + "\n")
	}
	return b.String()
}

// hosts returns the content of a hosts file. It maps the host name of the machine to its first
// address outside VRFs, IPv4 before IPv6, or else to a loopback address. The host name then
// resolves without a name server.
func hosts(w Want) string {
	own := netip.AddrFrom4([4]byte{127, 0, 1, 1})
	found := false
	for _, a := range w.Addresses {
		ip := a.Prefix.Addr()
		inVRF := func(l WantLink) bool { return l.Virtual.VRF != nil || vrfTable(w.Links, l) != 0 }
		if slices.ContainsFunc(w.Links, func(l WantLink) bool { return l.Index == a.Index && inVRF(l) }) {
			continue
		}
		if !found || ip.Is4() && !own.Is4() {
			own, found = ip, true
		}
	}
	names := w.Hostname
	if short, _, dotted := strings.Cut(w.Hostname, "."); dotted {
		names += " " + short
	}
	return "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n" + own.String() + " " + names + "\n"
}
