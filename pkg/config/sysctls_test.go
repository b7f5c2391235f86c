package config

import "testing"

// TestOwnSysctlsOfLinks: what the network sets on its links a configuration cannot, on any link and on all of them.
func TestOwnSysctlsOfLinks(t *testing.T) {
	for name, own := range map[string]bool{
		"net.ipv6.conf.eth0.accept_ra":                      true,
		"net.ipv6.conf.all.accept_ra":                       true,
		"net.ipv4.conf.eth0/100.promote_secondaries":        true,
		"net.ipv4.conf.default.ignore_routes_with_linkdown": true,
		"net.ipv6.conf.eth0.ignore_routes_with_linkdown":    true,
		"net.ipv6.conf.eth0.accept_ra_defrtr":               false,
		"net.ipv6.conf.eth0.use_tempaddr":                   false,
		"net.ipv4.conf.eth0/100.rp_filter":                  false,
		"net.ipv4.accept_ra":                                false,
	} {
		if why := OwnSysctl(name); (why != "") != own {
			t.Errorf("%s: %q", name, why)
		}
	}
}
