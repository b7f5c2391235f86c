package neighbor

import (
	"net/netip"
	"strings"
	"testing"
)

// network parses the addresses of a machine on a link, each with the length of its prefix.
func network(words ...string) (all []netip.Prefix) {
	for _, w := range words {
		all = append(all, netip.MustParsePrefix(w))
	}
	return all
}

func TestPlace(t *testing.T) {
	links := []Link{
		{Index: 1, Name: "front", Networks: network("192.0.2.10/24", "2001:db8::10/64")},
		{Index: 2, Name: "back", Networks: network("198.51.100.10/24")},
		{Index: 3, Name: "second", Networks: network("192.0.2.11/24")},
	}
	for _, c := range []struct{ address, own, want string }{
		{"198.51.100.70", "192.0.2.10", "back"},
		{"192.0.2.70", "198.51.100.10", "front second"},
		{"2001:db8::70", "192.0.2.10", "front"},
		{"203.0.113.1", "198.51.100.10", "back"}, // a router routes this address to the link back
		{"2001:db9::1", "2001:db8::10", "front"},
		{"2001:db9::1", "192.0.2.10", ""},
		{"203.0.113.1", "192.0.2.99", ""},
	} {
		var got []string
		for _, l := range Place(netip.MustParseAddr(c.address), links, []netip.Addr{netip.MustParseAddr(c.own)}) {
			got = append(got, l.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("links for the address %s on a machine with the address %s: %q, want %q", c.address, c.own, got, c.want)
		}
	}
}

func TestSource(t *testing.T) {
	links := []Link{
		{Name: "front", Networks: network("192.0.2.10/24", "198.51.100.10/24", "2001:db8::10/64")}, {Name: "back", Networks: network("192.0.2.11/24")},
	}
	for _, c := range []struct{ address, link, want string }{
		{"192.0.2.20", "front", "192.0.2.10"},
		{"198.51.100.20", "front", "198.51.100.10"},
		{"192.0.2.20", "back", "192.0.2.11"},
		{"203.0.113.20", "front", "192.0.2.10"},
		{"2001:db9::20", "front", "2001:db8::10"},
		{"2001:db8::20", "back", "invalid IP"},
		{"192.0.2.20", "gone", "invalid IP"},
	} {
		if got := source(SeenAddress{Address: netip.MustParseAddr(c.address), Link: c.link}, links); got.String() != c.want {
			t.Errorf("the source address of a request for %s on the link %s is %s, want %s", c.address, c.link, got, c.want)
		}
	}
}
