package sysctl

import "testing"

func TestReservedReason(t *testing.T) {
	for name, want := range map[string]string{
		"kernel.kptr_restrict":                              hardening,
		"kernel.modules_disabled":                           hardening,
		"fs.binfmt_misc.register":                           hardening,
		"net.ipv4.ip_forward":                               forwarding,
		"net.bridge.bridge-nf-call-iptables":                forwarding,
		"vm.overcommit_memory":                              kubelet,
		"kernel.panic":                                      panics,
		"kernel.hostname":                                   hostname,
		"net.ipv6.conf.eth0.accept_ra":                      links,
		"net.ipv6.conf.all.accept_ra":                       links,
		"net.ipv4.conf.eth0/100.promote_secondaries":        links,
		"net.ipv4.conf.default.ignore_routes_with_linkdown": links,
		"net.ipv6.conf.eth0.ignore_routes_with_linkdown":    links,
		"net.ipv4.conf.eth0/100.rp_filter":                  allLinks,
		"net.ipv4.conf.all.rp_filter":                       routing,
		"net.ipv4.conf.eth0.accept_redirects":               allLinks,
		"net.ipv4.conf.eth0.accept_source_route":            allLinks,
		"net.ipv4.conf.eth0.forwarding":                     forwarding,
		"net.ipv6.conf.default.forwarding":                  forwarding,
		"net.ipv6.conf.eth0.accept_ra_defrtr":               "",
		"net.ipv6.conf.eth0.use_tempaddr":                   "",
		"net.ipv4.conf.eth0.send_redirects":                 "",
		"net.ipv4.conf.eth0/100.arp_ignore":                 "",
		"net.ipv4.accept_ra":                                "",
		"vm.min_free_kbytes":                                "",
		"net.core.somaxconn":                                "",
	} {
		if got := ReservedReason(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestTables checks that each parameter stands once in the tables and has a reason.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for _, table := range [][]Parameter{System, Pods, Reserved} {
		for _, p := range table {
			if seen[p.Name] || p.Reason == "" {
				t.Errorf("%s: listed twice, or without a reason", p.Name)
			}
			seen[p.Name] = true
		}
	}
}
