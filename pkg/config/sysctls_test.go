package config

import "testing"

// TestOwnSysctlsOfLinks: what the network sets on its links a configuration cannot, on any link and
// on all of them.
func TestOwnSysctlsOfLinks(t *testing.T) {
	for name, own := range map[string]bool{
		"net.ipv6.conf.eth0.accept_ra":                      true,
		"net.ipv6.conf.all.accept_ra":                       true,
		"net.ipv4.conf.eth0/100.promote_secondaries":        true,
		"net.ipv4.conf.default.ignore_routes_with_linkdown": true,
		"net.ipv6.conf.eth0.ignore_routes_with_linkdown":    true,
		"net.ipv6.conf.eth0.accept_ra_defrtr":               false,
		"net.ipv6.conf.eth0.use_tempaddr":                   false,
		// the greater one decides, and that of all links is 2
		"net.ipv4.conf.eth0/100.rp_filter":       true,
		"net.ipv4.conf.eth0.accept_redirects":    true,
		"net.ipv4.conf.eth0.accept_source_route": true,
		"net.ipv4.conf.eth0.forwarding":          true,
		"net.ipv6.conf.default.forwarding":       true,
		"net.ipv4.conf.eth0.send_redirects":      false,
		"net.ipv4.conf.eth0/100.arp_ignore":      false,
		"net.ipv4.accept_ra":                     false,
	} {
		if why := OwnSysctl(name); (why != "") != own {
			t.Errorf("%s: %q", name, why)
		}
	}
}
