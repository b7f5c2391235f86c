package dhcp6

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

var (
	self   = identity{duid: DUID(net.HardwareAddr{2, 0, 0, 0, 0, 1}), iaid: IAID("02:00:00:00:00:01")}
	server = dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}
)

func raw(code dhcpv6.OptionCode, b ...byte) dhcpv6.Option {
	return &dhcpv6.OptionGeneric{OptionCode: code, OptionData: b}
}

func ip(s string) net.IP { return netip.MustParseAddr(s).AsSlice() }

// message encodes a message of the server. It contains the DUIDs of the server and of the client,
// and the given options.
func message(kind dhcpv6.MessageType, options ...dhcpv6.Option) []byte {
	m := dhcpv6.Message{MessageType: kind, TransactionID: dhcpv6.TransactionID{1, 2, 3}}
	m.AddOption(raw(dhcpv6.OptionClientID, self.duid...))
	m.AddOption(dhcpv6.OptServerID(&server))
	for _, o := range options {
		m.AddOption(o)
	}
	return m.ToBytes()
}

func addresses(t1, t2 time.Duration, list ...dhcpv6.Option) *dhcpv6.OptIANA {
	ia := &dhcpv6.OptIANA{IaId: self.iaid, T1: t1, T2: t2}
	for _, o := range list {
		ia.Options.Add(o)
	}
	return ia
}

func address(s string, preferred, valid time.Duration) dhcpv6.Option {
	return &dhcpv6.OptIAAddress{IPv6Addr: ip(s), PreferredLifetime: preferred, ValidLifetime: valid}
}

func prefixes(list ...dhcpv6.Option) *dhcpv6.OptIAPD {
	ia := &dhcpv6.OptIAPD{IaId: self.iaid}
	for _, o := range list {
		ia.Options.Add(o)
	}
	return ia
}

func prefix(s string, preferred, valid time.Duration) dhcpv6.Option {
	p := netip.MustParsePrefix(s)
	return &dhcpv6.OptIAPrefix{PreferredLifetime: preferred, ValidLifetime: valid, Prefix: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 128)}}
}

// TestParse checks the lease, and the notes about unusable parts, that parse gets from messages of
// a server.
func TestParse(t *testing.T) {
	everything := []dhcpv6.Option{
		addresses(time.Minute, 2*time.Minute, address("2001:db8::5", time.Hour, 2*time.Hour)),
		prefixes(prefix("2001:db8:100::/56", time.Hour, 2*time.Hour)),
		dhcpv6.OptDNS(ip("2001:db8::53"), ip("2001:db8::54"), ip("2001:db8::53")),
		dhcpv6.OptDomainSearchList(&rfc1035label.Labels{Labels: []string{"lan.test", "corp.example"}}),
		raw(dhcpv6.OptionNTPServer, slices.Concat([]byte{0, 1, 0, 16}, ip("2001:db8::123"), []byte{0, 2, 0, 16}, ip("ff05::101"), []byte{0, 3, 0, 6, 4, 't', 'i', 'm', 'e', 0})...),
		raw(dhcpv6.OptionRapidCommit), dhcpv6.OptPreference(9), raw(dhcpv6.OptionSolMaxRT, 0, 0, 0x0e, 0x10),
	}
	none := Lease{T1: defaultRefresh, T2: defaultRefresh}
	with := func(l Lease) Lease {
		if l.stateless() && l.T1 == 0 {
			l.T1, l.T2 = none.T1, none.T2
		}
		return l
	}
	five := []Address{{netip.MustParseAddr("2001:db8::5"), time.Hour, 2 * time.Hour}}
	for _, test := range []struct {
		name  string
		in    []byte
		want  Lease
		check func(*Reply) bool
		notes string
	}{
		{"everything", message(dhcpv6.MessageTypeReply, everything...), Lease{
			Addresses: five, Prefixes: []Prefix{{netip.MustParsePrefix("2001:db8:100::/56"), time.Hour, 2 * time.Hour}},
			T1: time.Minute, T2: 2 * time.Minute,
			DNS:    []netip.Addr{netip.MustParseAddr("2001:db8::53"), netip.MustParseAddr("2001:db8::54")},
			Search: []string{"lan.test", "corp.example"}, NTP: []string{"2001:db8::123", "time"},
		}, func(r *Reply) bool {
			return r.Rapid && r.Preference == 9 && r.MaxWait == time.Hour && r.XID == 0x010203 && !r.Advertise
		}, ""},
		{"settings only", message(dhcpv6.MessageTypeReply, dhcpv6.OptDNS(ip("2001:db8::53")), raw(dhcpv6.OptionInformationRefreshTime, 0, 0, 0x0e, 0x10)),
			Lease{DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")}, T1: time.Hour, T2: time.Hour}, nil, ""},
		{"a refresh time of 0", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionInformationRefreshTime, 0, 0, 0, 0)), Lease{T1: minRefresh, T2: minRefresh}, nil, ""},
		{"no T1 and T2, so the client chooses them", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", time.Hour, 2*time.Hour))),
			Lease{Addresses: five, T1: 30 * time.Minute, T2: 48 * time.Minute}, nil, ""},
		{"no preferred time", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", 0, 2*time.Hour))),
			Lease{Addresses: []Address{{netip.MustParseAddr("2001:db8::5"), 0, 2 * time.Hour}}, T1: minRenewal, T2: minRenewal}, nil, ""},
		{"infinite lifetimes", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", Forever, Forever))),
			Lease{Addresses: []Address{{netip.MustParseAddr("2001:db8::5"), Forever, Forever}}, T1: Forever, T2: Forever}, nil, ""},
		{"another identity association", message(dhcpv6.MessageTypeReply, &dhcpv6.OptIANA{IaId: [4]byte{9}, Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{address("2001:db8::5", time.Hour, time.Hour)}}}), Lease{}, nil, ""},
		{"a withdrawn address", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", 0, 0))), Lease{}, func(r *Reply) bool { return r.Withdrawn }, ""},
		{"invalid addresses", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("fe80::1", time.Hour, time.Hour), address("::1", time.Hour, time.Hour), address("ff02::1", time.Hour, time.Hour))),
			Lease{}, nil, "fe80::1 is not an address of a machine"},
		{"preferred longer than valid", message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", 2*time.Hour, time.Hour))), Lease{}, nil, "preferred longer than valid"},
		{"T1 after T2", message(dhcpv6.MessageTypeReply, addresses(time.Hour, time.Minute, address("2001:db8::5", time.Hour, time.Hour))), Lease{}, nil, "T1 1h0m0s is after T2 1m0s"},
		{"invalid prefixes", message(dhcpv6.MessageTypeReply, prefixes(prefix("2001:db8::/65", time.Hour, time.Hour), prefix("fe80::/16", time.Hour, time.Hour), prefix("2000::/3", time.Hour, time.Hour))),
			Lease{}, nil, "is not a prefix of /16 to /64"},
		{"a damaged association beside resolvers", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionIANA, 1, 2, 3), dhcpv6.OptDNS(ip("2001:db8::53"))),
			Lease{DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")}}, nil, "addresses (option 3)"},
		{"an invalid resolver address", message(dhcpv6.MessageTypeReply, dhcpv6.OptDNS(ip("fe80::1"), ip("2001:db8::53"))),
			Lease{DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")}}, nil, "fe80::1 is not an address of another machine"},
		{"a truncated resolver address", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionDNSRecursiveNameServer, 1, 2, 3)), Lease{}, nil, "does not match a list of addresses"},
		{"a line break in a domain", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionDomainSearchList, 3, 'a', '\n', 'b', 0)), Lease{}, nil, "is not a name"},
		{"a truncated time server", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionNTPServer, 0, 1, 0, 16, 1)), Lease{}, nil, "time servers (option 56)"},
		{"SNTP", message(dhcpv6.MessageTypeReply, raw(dhcpv6.OptionSNTPServerList, ip("2001:db8::123")...)), Lease{NTP: []string{"2001:db8::123"}}, nil, ""},
		{"no addresses left", message(dhcpv6.MessageTypeAdvertise, addresses(0, 0, &dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "pool\x07 full"})),
			Lease{}, func(r *Reply) bool { return r.Advertise && r.Rejects == `NoAddrsAvail ("pool\a full")` }, ""},
		{"no prefixes left", message(dhcpv6.MessageTypeAdvertise, prefixes(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoPrefixAvail})),
			Lease{}, func(r *Reply) bool { return r.Rejects == "" }, "delegates no prefix"},
		{"no binding", message(dhcpv6.MessageTypeReply, addresses(0, 0, &dhcpv6.OptStatusCode{StatusCode: iana.StatusNoBinding})), Lease{}, func(r *Reply) bool { return r.NoBinding }, ""},
		{"another link", message(dhcpv6.MessageTypeReply, &dhcpv6.OptStatusCode{StatusCode: iana.StatusNotOnLink}), Lease{}, func(r *Reply) bool { return r.Rejects != "" }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := parse(test.in, self)
			if err != nil {
				t.Fatal(err)
			}
			want := with(test.want)
			want.Server = hex.EncodeToString(server.ToBytes())
			if !reflect.DeepEqual(r.Lease, want) {
				t.Errorf("got  %+v\nwant %+v", r.Lease, want)
			}
			if test.check != nil && !test.check(r) {
				t.Errorf("the message is %+v", r)
			}
			if notes := r.summary(); test.notes == "" && notes != "" || !strings.Contains(notes, test.notes) {
				t.Errorf("notes %q, want one with %q", notes, test.notes)
			}
		})
	}
}

// TestRejected checks the messages for which parse returns an error.
func TestRejected(t *testing.T) {
	whole := message(dhcpv6.MessageTypeReply)
	foreign := dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply}
	foreign.AddOption(dhcpv6.OptServerID(&server))
	anonymous := dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply}
	anonymous.AddOption(raw(dhcpv6.OptionClientID, self.duid...))
	long := dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply}
	long.AddOption(raw(dhcpv6.OptionClientID, self.duid...))
	long.AddOption(raw(dhcpv6.OptionServerID, make([]byte, 131)...))
	for name, test := range map[string]struct {
		in   []byte
		want string
	}{
		"no bytes":                             {nil, errNotDHCP.Error()},
		"a message of a client":                {message(dhcpv6.MessageTypeSolicit), errNotDHCP.Error()},
		"a message of a relay":                 {message(dhcpv6.MessageTypeRelayReply), errNotDHCP.Error()},
		"no client identifier":                 {foreign.ToBytes(), errNotDHCP.Error()},
		"no server identifier":                 {anonymous.ToBytes(), "has no server identifier"},
		"truncated":                            {whole[:len(whole)-1], "option 2 is truncated"},
		"truncated header":                     {whole[:len(whole)-len(server.ToBytes())-2], "an option is truncated"},
		"too many options":                     {append(whole, make([]byte, 4*maxOptions)...), "more than 256 options"},
		"a server identifier that is too long": {long.ToBytes(), "has no server identifier"},
	} {
		if r, err := parse(test.in, self); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v; want %q", name, r, err, test.want)
		}
	}
}

// TestEncode encodes a message of each kind, decodes it with the library, and checks its options.
func TestEncode(t *testing.T) {
	l := &Lease{Server: hex.EncodeToString(server.ToBytes()), Addresses: granted.Addresses, Prefixes: []Prefix{{Prefix: delegated}}}
	both := Mode{Addresses: true, Prefix: 56}
	for _, test := range []struct {
		m    Message
		want string
	}{
		{Message{Kind: Solicit, Mode: both, Elapsed: time.Second}, "SOLICIT id 1s wanted name rapid NA PD ::/56"},
		{Message{Kind: Request, Mode: both, Server: l.Server, Lease: l}, "REQUEST id server 0s wanted name NA 2001:db8::5 PD 2001:db8:100::/56"},
		{Message{Kind: Confirm, Mode: stateful, Lease: l}, "CONFIRM id 0s NA 2001:db8::5"},
		{Message{Kind: Renew, Mode: Mode{Prefix: 56}, Server: l.Server, Lease: l}, "RENEW id server 0s wanted name PD 2001:db8:100::/56"},
		{Message{Kind: Rebind, Mode: stateful, Lease: l}, "REBIND id 0s wanted name NA 2001:db8::5"},
		{Message{Kind: Decline, Mode: both, Server: l.Server, Lease: &Lease{Addresses: l.Addresses}}, "DECLINE id server 0s NA 2001:db8::5"},
		{Message{Kind: ReleaseMessage, Mode: both, Server: l.Server, Lease: l}, "RELEASE id server 0s NA 2001:db8::5 PD 2001:db8:100::/56"},
		{Message{Kind: InformationRequest, Elapsed: 24 * time.Hour}, "INFORMATION-REQUEST id 10m55.35s wanted name"},
	} {
		m, err := dhcpv6.MessageFromBytes(encode(test.m, self, "ship"))
		if err != nil {
			t.Errorf("%v: %v", test.m.Kind, err)
			continue
		}
		if got := describe(t, m); got != test.want {
			t.Errorf("%v: %s, want %s", test.m.Kind, got, test.want)
		}
	}
}

// describe returns the type and the options of a message as text.
func describe(t *testing.T, m *dhcpv6.Message) string {
	out := []string{m.Type().String()}
	for _, o := range m.Options.Options {
		switch o := o.(type) {
		case *dhcpv6.OptIANA:
			out = append(out, "NA")
			for _, a := range o.Options.Addresses() {
				out = append(out, a.IPv6Addr.String())
			}
			if o.IaId != self.iaid {
				t.Errorf("the association is %x", o.IaId)
			}
		case *dhcpv6.OptIAPD:
			out = append(out, "PD")
			for _, p := range o.Options.Prefixes() {
				out = append(out, p.Prefix.String())
			}
		case *dhcpv6.OptFQDN:
			out = append(out, "name")
			if o.DomainName.Labels[0] != "ship" {
				t.Errorf("the name is %v", o)
			}
		default:
			switch o.Code() {
			case dhcpv6.OptionClientID:
				out = append(out, "id")
			case dhcpv6.OptionServerID:
				out = append(out, "server")
			case dhcpv6.OptionElapsedTime:
				out = append(out, m.Options.ElapsedTime().String())
			case dhcpv6.OptionORO:
				out = append(out, "wanted")
			case dhcpv6.OptionRapidCommit:
				out = append(out, "rapid")
			default:
				out = append(out, fmt.Sprint(o.Code()))
			}
		}
	}
	return strings.Join(out, " ")
}

// FuzzReply parses arbitrary messages. It checks that each accepted message has only values that
// the machine can configure safely: valid addresses and prefixes, times in order, names without
// white space.
func FuzzReply(f *testing.F) {
	f.Add(message(dhcpv6.MessageTypeReply, addresses(0, 0, address("2001:db8::5", time.Hour, 2*time.Hour)), prefixes(prefix("2001:db8:100::/56", time.Hour, time.Hour)), dhcpv6.OptDNS(ip("2001:db8::53"))))
	f.Add(message(dhcpv6.MessageTypeAdvertise, raw(dhcpv6.OptionNTPServer, 0, 3, 0, 6, 4, 't', 'i', 'm', 'e', 0), raw(dhcpv6.OptionDomainSearchList, 3, 'l', 'a', 'n', 0), raw(dhcpv6.OptionIAPD, make([]byte, 12)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parse(b[:min(len(b), maxMessage)], self)
		if err != nil {
			return
		}
		l := r.Lease
		if len(l.Addresses) > maxAddresses || len(l.Prefixes) > maxAddresses || len(l.DNS) > maxAddresses || len(l.NTP) > maxAddresses || len(r.Notes) > maxNotes {
			t.Errorf("more items than permitted: %+v", r)
		}
		for _, a := range l.Addresses {
			if !usable(a.Addr) || a.Valid <= 0 || a.Preferred > a.Valid {
				t.Errorf("address %+v", a)
			}
		}
		for _, p := range l.Prefixes {
			if !p.Prefix.IsValid() || p.Prefix != p.Prefix.Masked() || p.Prefix.Bits() > 64 {
				t.Errorf("prefix %+v", p)
			}
		}
		if l.T1 < 0 || l.T1 > l.T2 && !l.stateless() {
			t.Errorf("times %v and %v", l.T1, l.T2)
		}
		for _, n := range slices.Concat(l.Search, l.NTP) {
			if strings.ContainsAny(n, " \n#;") {
				t.Errorf("name %q", n)
			}
		}
	})
}
