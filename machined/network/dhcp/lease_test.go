package dhcp

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// ack returns an ACK of a server with a complete lease, and with the options in more.
func ack(t *testing.T, more ...dhcpv4.Option) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(
		dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(192, 0, 2, 5)), dhcpv4.WithLeaseTime(3600),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 1))))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range more {
		m.UpdateOption(o)
	}
	return m
}

// overTheWire encodes a message, and decodes the result with the decoder of this package.
func overTheWire(t *testing.T, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	out, err := decode(m.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestParseSettings checks the lease that parseReply gets from the options of an ACK, and that this
// lease can be stored as JSON.
func TestParseSettings(t *testing.T) {
	ip := netip.MustParseAddr
	router := dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1))
	defaultRoute := func(via string) Route { return Route{netip.MustParsePrefix("0.0.0.0/0"), ip(via)} }
	base := Lease{
		Address: netip.MustParsePrefix("192.0.2.5/24"), Server: ip("192.0.2.1"),
		Duration: time.Hour, T1: 30 * time.Minute, T2: 52*time.Minute + 30*time.Second,
	}
	with := func(change func(*Lease)) Lease { l := base; change(&l); return l }
	for _, c := range []struct {
		name    string
		options []dhcpv4.Option
		want    Lease
	}{
		{name: "no other options", want: base},
		{name: "router", options: []dhcpv4.Option{router}, want: with(func(l *Lease) { l.Routes = []Route{defaultRoute("192.0.2.1")} })},
		{name: "classless routes hide the router", options: []dhcpv4.Option{router, dhcpv4.OptClasslessStaticRoute(
			&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(192, 0, 2, 254), Mask: net.CIDRMask(32, 32)}, Router: net.IPv4zero},
			&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Router: net.IPv4(192, 0, 2, 254)})},
			want: with(func(l *Lease) {
				l.Routes = []Route{{To: netip.MustParsePrefix("192.0.2.254/32")}, defaultRoute("192.0.2.254")}
			})},
		{name: "resolver", options: []dhcpv4.Option{
			dhcpv4.OptDNS(net.IPv4(192, 0, 2, 53), net.IPv4(192, 0, 2, 53), net.IPv4zero), dhcpv4.OptDomainName("lan.test."),
			dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.test", "b.test"}})},
			want: with(func(l *Lease) {
				l.DNS, l.Domain, l.Search = []netip.Addr{ip("192.0.2.53")}, "lan.test", []string{"a.test", "b.test"}
			})},
		{name: "names with white space are omitted", options: []dhcpv4.Option{
			dhcpv4.OptDomainName("a\nnameserver 203.0.113.1"), dhcpv4.OptHostName("x y")}, want: base},
		{name: "white space around names", options: []dhcpv4.Option{
			dhcpv4.OptGeneric(dhcpv4.OptionDomainName, []byte("\t lan.test.\r\n\x00")), dhcpv4.OptGeneric(dhcpv4.OptionHostName, []byte(" Anchor.lan.test.\n")),
			dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.test\n", " b.test", "a.test"}})},
			want: with(func(l *Lease) { l.Hostname, l.Domain, l.Search = "anchor", "lan.test", []string{"a.test", "b.test"} })},
		{name: "several domains in one option", options: []dhcpv4.Option{dhcpv4.OptGeneric(dhcpv4.OptionDomainName, []byte("a.test.\tb.test, c.test\n"))},
			want: with(func(l *Lease) { l.Domain, l.Search = "a.test", []string{"a.test", "b.test", "c.test"} })},
		{name: "the client's own address is omitted", options: []dhcpv4.Option{
			dhcpv4.OptDNS(net.IPv4(192, 0, 2, 5), net.IPv4(192, 0, 2, 53)), dhcpv4.OptNTPServers(net.IPv4(192, 0, 2, 5)), dhcpv4.OptRouter(net.IPv4(192, 0, 2, 5))},
			want: with(func(l *Lease) { l.DNS = []netip.Addr{ip("192.0.2.53")} })},
		{name: "routes of option 33", options: []dhcpv4.Option{router, dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{
			// a network of each address class, and a host
			10, 0, 0, 0, 192, 0, 2, 254, 172, 16, 0, 0, 192, 0, 2, 253, 198, 51, 100, 0, 192, 0, 2, 253, 10, 1, 2, 3, 192, 0, 2, 252,
			// a second route to 10.0.0.0 with lower priority, and three unusable routes
			10, 0, 0, 0, 192, 0, 2, 251, 0, 0, 0, 0, 192, 0, 2, 254, 10, 9, 9, 9, 192, 0, 2, 5, 10, 9, 9, 9, 0, 0, 0, 0})},
			want: with(func(l *Lease) {
				to := netip.MustParsePrefix
				l.Routes = []Route{defaultRoute("192.0.2.1"), {to("10.0.0.0/8"), ip("192.0.2.254")}, {to("172.16.0.0/16"), ip("192.0.2.253")}, {to("198.51.100.0/24"), ip("192.0.2.253")},
					{to("10.1.2.3/32"), ip("192.0.2.252")}}
			})},
		{name: "classless routes hide those of option 33", options: []dhcpv4.Option{
			dhcpv4.OptClasslessStaticRoute(&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Router: net.IPv4(192, 0, 2, 254)}),
			dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 192, 0, 2, 254})},
			want: with(func(l *Lease) { l.Routes = []Route{defaultRoute("192.0.2.254")} })},
		{name: "host name, time, MTU", options: []dhcpv4.Option{
			dhcpv4.OptHostName("Anchor.lan.test"), dhcpv4.OptNTPServers(net.IPv4(192, 0, 2, 123)), dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0x23, 0x28})},
			want: with(func(l *Lease) { l.Hostname, l.NTP, l.MTU = "anchor", []netip.Addr{ip("192.0.2.123")}, 9000 })},
		{name: "the second router, if the first is invalid", options: []dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 255), net.IPv4(192, 0, 2, 1))},
			want: with(func(l *Lease) { l.Routes = []Route{defaultRoute("192.0.2.1")} })},
		{name: "an MTU that IPv4 cannot use", options: []dhcpv4.Option{dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0, 68})}, want: base},
		{name: "T1 and T2 of the server", options: []dhcpv4.Option{dhcpv4.OptRenewTimeValue(time.Minute), dhcpv4.OptRebindingTimeValue(2 * time.Minute)},
			want: with(func(l *Lease) { l.T1, l.T2 = time.Minute, 2*time.Minute })},
		{name: "T1 and T2 in the wrong order are ignored", options: []dhcpv4.Option{dhcpv4.OptRenewTimeValue(2 * time.Hour), dhcpv4.OptRebindingTimeValue(time.Minute)}, want: base},
		{name: "no subnet mask, so that of the address class", options: []dhcpv4.Option{dhcpv4.OptGeneric(dhcpv4.OptionSubnetMask, nil)}, want: base},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := parseReply(overTheWire(t, ack(t, c.options...)))
			if err != nil {
				t.Fatal(err)
			}
			if r.Kind != Ack || !reflect.DeepEqual(r.Lease, c.want) {
				t.Errorf("got  %+v\nwant %+v", r.Lease, c.want)
			}
			// The lease is the same after it is stored as JSON and loaded again.
			b, err := json.Marshal(r.Lease)
			var back Lease
			if err == nil {
				err = json.Unmarshal(b, &back)
			}
			if err != nil || !reflect.DeepEqual(back, r.Lease) {
				t.Errorf("the lease after JSON: %+v, %v", back, err)
			}
		})
	}
}

// TestNotes checks that Reply.Notes describes each unusable or ignored part of a message.
func TestNotes(t *testing.T) {
	manyDomains, manyServers := "", []byte{}
	for i := range byte(33) {
		manyDomains += fmt.Sprintf("d%d.test ", i)
		manyServers = append(manyServers, 192, 0, 2, i+10)
	}
	for _, c := range []struct {
		option dhcpv4.Option
		want   string
	}{
		{dhcpv4.OptGeneric(dhcpv4.OptionDomainName, []byte("lan.test\n")), ""},
		{dhcpv4.OptGeneric(dhcpv4.OptionDomainName, []byte("a\nb")), `domain (option 15): "a\nb" is not a name`},
		{dhcpv4.OptGeneric(dhcpv4.OptionHostName, []byte("\n")), ""},
		{dhcpv4.OptGeneric(dhcpv4.OptionHostName, []byte("x y\n")), `host name (option 12): "x y" is not a name`},
		{dhcpv4.OptDNS(net.IPv4(192, 0, 2, 5)), "resolvers (option 6): 192.0.2.5 is this machine's own address"},
		{dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 192, 0, 2}), "routes (option 33): its length is not a multiple of 8"},
		{dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{0, 0, 0, 0, 192, 0, 2, 1}), "routes (option 33): 0.0.0.0 cannot be a destination"},
		{dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 192, 0, 2, 5}), "routes (option 33): 192.0.2.5 is not an address of a router"},
		{dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 192, 0, 2, 255}), "routes (option 33): 192.0.2.255 is not an address of a router"},
		{dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{0, 192, 0, 2, 5}), "routes (option 121): 192.0.2.5 is not an address of a router"},
		{dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, []byte{0, 192, 0, 2, 255}), "routes (option 121): 192.0.2.255 is not an address of a router"},
		{dhcpv4.OptRouter(net.IPv4(192, 0, 2, 255)), "routers (option 3): 192.0.2.255 is not an address of a router"},
		{dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{0, 68}), "MTU (option 26): 68 is less than 576"},
		{dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 220, 0}), "MTU (option 26): its length is 3, not 2"},
		{dhcpv4.OptGeneric(dhcpv4.OptionDomainName, []byte(manyDomains)), "domain (option 15): more than 32 domains"},
		{dhcpv4.OptGeneric(dhcpv4.OptionNTPServers, manyServers), "time servers (option 42): more than 16 addresses"},
	} {
		r, err := parseReply(overTheWire(t, ack(t, c.option)))
		if err != nil || strings.Join(r.Notes, "; ") != c.want {
			t.Errorf("%v: %q, %v; want %q", c.option, r.Notes, err, c.want)
		}
	}
	var many []byte
	for i := range byte(100) {
		many = append(many, 10, 0, 0, i+1, 192, 0, 2, 1)
	}
	r, err := parseReply(overTheWire(t, ack(t, dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1)), dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, many))))
	if err != nil || len(r.Lease.Routes) != maxRoutes || !slices.Equal(r.Notes, []string{"routes (option 33): more than 63 routes"}) {
		t.Errorf("routes to 100 hosts: %d routes, %q, %v", len(r.Lease.Routes), r.Notes, err)
	}
	if most, _ := parseReply(overTheWire(t, ack(t, dhcpv4.OptGeneric(dhcpv4.OptionStaticRoutingTable, slices.Repeat([]byte{10, 0, 0, 1, 192, 0, 2, 1}, 100))))); len(most.Lease.Routes) != 1 {
		t.Errorf("100 routes to the same host: %v", most.Lease.Routes)
	}
}

// TestParseRefuses checks that parseReply rejects a message that is not from a server, or lacks a
// usable server, lease time, address or subnet mask.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*dhcpv4.DHCPv4)
		says   string
	}{
		{"a client's message", func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeDiscover)) }, "not from a server"},
		{"no server", func(m *dhcpv4.DHCPv4) { m.DeleteOption(dhcpv4.OptionServerIdentifier) }, "option 54"},
		{"no lease time", func(m *dhcpv4.DHCPv4) { m.DeleteOption(dhcpv4.OptionIPAddressLeaseTime) }, "option 51"},
		{"no address", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4zero }, "no usable address"},
		{"a multicast address", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4(224, 0, 0, 1) }, "no usable address"},
		{"an address in 0.0.0.0/8", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4(0, 0, 0, 5) }, "no usable address"},
		{"the broadcast address", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4bcast }, "no usable address"},
		{"the network address of the subnet", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4(192, 0, 2, 0) }, "no usable address"},
		{"the broadcast address of the subnet", func(m *dhcpv4.DHCPv4) { m.YourIPAddr = net.IPv4(192, 0, 2, 255) }, "no usable address"},
		{"a mask of three bytes", func(m *dhcpv4.DHCPv4) {
			m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionSubnetMask, []byte{255, 255, 255}))
		}, "option 1"},
		{"a mask without set bits", func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(0, 32))) }, "option 1"},
		{"a mask with holes", func(m *dhcpv4.DHCPv4) { m.UpdateOption(dhcpv4.OptSubnetMask(net.IPv4Mask(255, 0, 255, 0))) }, "option 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ack(t)
			c.change(m)
			if _, err := parseReply(m); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
}

// FuzzReply parses arbitrary messages. It checks that each accepted reply has only values that the
// machine can configure safely: valid addresses and routes, times in order, names without white
// space.
func FuzzReply(f *testing.F) {
	m, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeAck))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.ToBytes())
	for _, c := range messages {
		f.Add(c.bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		r, err := parseReply(m)
		if err != nil || r.Kind == Nak {
			return
		}
		l := r.Lease
		if !l.Address.IsValid() || r.Kind == Ack && (l.T1 <= 0 || l.T1 > l.T2 || l.T2 >= l.Duration) {
			t.Errorf("lease %+v", l)
		}
		for _, r := range l.Routes {
			if !r.To.IsValid() || r.To != r.To.Masked() || r.Via.IsValid() && !usable(r.Via) {
				t.Errorf("route %+v", r)
			}
		}
		for _, a := range slices.Concat(l.DNS, l.NTP) {
			if !usable(a) {
				t.Errorf("address %v", a)
			}
		}
		if len(l.Routes) > maxRoutes || len(l.DNS) > maxAddresses || len(l.Search) > maxDomains || len(r.Notes) > maxNotes {
			t.Errorf("lease %+v", l)
		}
		if strings.ContainsAny(l.Domain+l.Hostname+strings.Join(l.Search, ""), " \n\t") {
			t.Errorf("names %q %q %q", l.Domain, l.Hostname, l.Search)
		}
	})
}
