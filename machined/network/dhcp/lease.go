package dhcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/orlop-os/orlop/machined/network/domains"
)

// Lease is a lease that a server has granted. It is immutable. Its JSON form is stored on disk.
type Lease struct {
	// the address with the length of its subnet (option 1)
	Address netip.Prefix `json:"address"`
	Server  netip.Addr   `json:"server"` // the server identifier (option 54)
	// time at which the request was sent; all durations start at it
	Acquired time.Time     `json:"acquired"`
	Duration time.Duration `json:"duration"` // option 51; Forever if the lease never ends
	T1       time.Duration `json:"t1"`       // time until renewal: option 58, else half of Duration
	// time until rebinding: option 59, else seven eighths of Duration
	T2 time.Duration `json:"t2"`
	// option 121 if it has usable routes, else option 249, else the router of option 3 and the
	// routes of option 33
	Routes []Route      `json:"routes,omitempty"`
	DNS    []netip.Addr `json:"dns,omitempty"`    // option 6
	Domain string       `json:"domain,omitempty"` // the first domain of option 15
	// option 119, else the domains of option 15 if it contains several
	Search []string     `json:"search,omitempty"`
	NTP    []netip.Addr `json:"ntp,omitempty"` // option 42
	// option 26, bytes; 0 if missing or out of range
	MTU      int    `json:"mtu,omitempty"`
	Hostname string `json:"hostname,omitempty"` // option 12
}

// Route is a route of a lease. If Via is invalid, the destination is on the link.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via"`
}

// Forever is the duration of a lease without an end (RFC 2131 section 3.3: 0xffffffff seconds).
const Forever = 0xffffffff * time.Second

// Expires returns the end of the lease; the zero time if the lease never ends.
func (l *Lease) Expires() time.Time {
	if l.Duration == Forever {
		return time.Time{}
	}
	return l.Acquired.Add(l.Duration)
}

// expired reports whether the lease has ended.
func (l *Lease) expired(now time.Time) bool {
	return l.Duration != Forever && !now.Before(l.Expires())
}

// ReplyKind is the type of a server's message.
type ReplyKind int

// The messages of a server that the state machine handles.
const (
	Offer ReplyKind = iota + 1
	Ack
	Nak
)

// Reply has the data of a server's message that the state machine needs.
type Reply struct {
	Kind  ReplyKind
	XID   uint32
	Rapid bool   // the Ack answers a Discover (Rapid Commit, option 80)
	Lease Lease  // Acquired is not set; for a Nak, only Server is set
	Text  string // text for the operator (option 56), may be empty
	// Notes describe the unusable and ignored parts of the message, one line each.
	Notes []string
}

// maxNotes is the maximum number of Reply.Notes.
const maxNotes = 8

// parseReply parses a server's message. It rejects an Offer or an Ack without a server identifier
// or with an unusable address, and an Ack without a lease time.
func parseReply(m *dhcpv4.DHCPv4) (*Reply, error) {
	x := m.TransactionID
	r := &Reply{XID: uint32(x[0])<<24 | uint32(x[1])<<16 | uint32(x[2])<<8 | uint32(x[3]), Text: trimmed(m.Options.Get(dhcpv4.OptionMessage))}
	r.Lease.Server = addr(m.ServerIdentifier())
	note := func(line string) {
		if len(r.Notes) < maxNotes {
			r.Notes = append(r.Notes, line)
		}
	}
	r.Rapid = m.Options.Has(dhcpv4.OptionRapidCommit)
	switch m.MessageType() {
	case dhcpv4.MessageTypeOffer:
		r.Kind = Offer
	case dhcpv4.MessageTypeAck:
		r.Kind = Ack
	case dhcpv4.MessageTypeNak:
		r.Kind = Nak
		return r, nil
	default:
		return nil, fmt.Errorf("DHCP message: not from a server: type %v", m.MessageType())
	}
	if !r.Lease.Server.IsValid() {
		return nil, errors.New("DHCP message: has no server identifier (option 54)")
	}
	if err := readGrant(m, &r.Lease, r.Kind == Ack); err != nil {
		return nil, err
	}
	readSettings(m, &r.Lease, note)
	return r, nil
}

// readGrant reads the address and the times of the lease into l. If timesNeeded is true, a message
// without a lease time is an error.
func readGrant(m *dhcpv4.DHCPv4, l *Lease, timesNeeded bool) error {
	ip := addr(m.YourIPAddr)
	if !usable(ip) {
		return fmt.Errorf("DHCP message from %v: offers no usable address: %v", l.Server, m.YourIPAddr)
	}
	mask := net.IPMask(m.Options.Get(dhcpv4.OptionSubnetMask))
	if len(mask) == 0 {
		// without option 1, the mask of the address class applies (RFC 2131 section 2)
		mask = net.IP(ip.AsSlice()).DefaultMask()
	}
	bits, size := mask.Size()
	if size != 32 || bits == 0 {
		return fmt.Errorf("DHCP message from %v: invalid subnet mask %v (option 1)", l.Server, mask)
	}
	l.Address = netip.PrefixFrom(ip, bits)
	// a /31 has two usable addresses (RFC 3021)
	if bits < 31 && (ip == l.Address.Masked().Addr() || ip == broadcast(l.Address)) {
		return fmt.Errorf("DHCP message from %v: offers no usable address: %v is not a host address", l.Server, l.Address)
	}
	l.Duration = m.IPAddressLeaseTime(0)
	if l.Duration <= 0 {
		if timesNeeded {
			return fmt.Errorf("DHCP message from %v: has no lease time (option 51)", l.Server)
		}
		return nil
	}
	l.T1, l.T2 = m.IPAddressRenewalTime(l.Duration/2), m.IPAddressRebindingTime(l.Duration/8*7)
	if l.T1 <= 0 || l.T1 > l.T2 || l.T2 >= l.Duration {
		l.T1, l.T2 = l.Duration/2, l.Duration/8*7
	}
	return nil
}

// readSettings reads the network settings of a message into l. It calls note() with a line for each
// unusable option.
func readSettings(m *dhcpv4.DHCPv4, l *Lease, note func(string)) {
	get := m.Options.Get
	own := l.Address.Addr()
	l.DNS = addrs(get(dhcpv4.OptionDomainNameServer), own, "resolvers (option 6)", note)
	l.NTP = addrs(get(dhcpv4.OptionNTPServers), own, "time servers (option 42)", note)
	readDomains(get(dhcpv4.OptionDomainName), get(dhcpv4.OptionDNSDomainSearchList), l, note)
	if name := trimmed(get(dhcpv4.OptionHostName)); name != "" {
		if h, _, _ := strings.Cut(name, "."); domains.Valid(h) {
			l.Hostname = strings.ToLower(h)
		} else {
			note(fmt.Sprintf("host name (option 12): %.80q is not a name", name))
		}
	}
	switch b := get(dhcpv4.OptionInterfaceMTU); len(b) {
	case 0:
	case 2:
		// a smaller MTU is ignored: every host accepts 576 (RFC 791)
		if mtu := int(b[0])<<8 | int(b[1]); mtu >= 576 {
			l.MTU = mtu
		} else {
			note(fmt.Sprintf("MTU (option 26): %d is less than 576", mtu))
		}
	default:
		note(fmt.Sprintf("MTU (option 26): its length is %d, not 2", len(b)))
	}
	readRoutes(m, l, note)
}

// trimmed returns the text of an option without white space and zero bytes at both ends. Many
// servers send the final newline of a file, or the zero byte at the end of a C string.
func trimmed(option []byte) string {
	return strings.Trim(string(option), " \t\r\n\x00")
}

// cleanDomain returns a domain without the white space around it and without its final dot.
func cleanDomain(name string) string {
	return strings.TrimRight(trimmed([]byte(name)), ".")
}

// readDomains reads options 15 and 119 into l. Many servers send several domains in option 15,
// separated by spaces, tabs or commas.
func readDomains(domain, search []byte, l *Lease, note func(string)) {
	var found []string
	list := trimmed(domain)
	// any other control character than a tab makes the whole option unusable
	if strings.ContainsFunc(list, func(r rune) bool { return r < ' ' && r != '\t' }) {
		note(fmt.Sprintf("domain (option 15): %.80q is not a name", list))
		list = ""
	}
	for d := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' }) {
		if d = cleanDomain(d); !domains.Valid(d) {
			note(fmt.Sprintf("domain (option 15): %.80q is not a name", d))
		} else if !slices.Contains(found, d) {
			found = append(found, d)
		}
	}
	if len(found) > maxDomains {
		note(fmt.Sprintf("domain (option 15): more than %d domains", maxDomains))
		found = found[:maxDomains]
	}
	if len(found) > 0 {
		l.Domain = found[0]
	}
	names, err := searchList(search)
	if err != nil {
		note(fmt.Sprintf("search list (option 119): %v", err))
	}
	for _, d := range names {
		if name := cleanDomain(d); !domains.Valid(name) {
			note(fmt.Sprintf("search list (option 119): %.80q is not a name", d))
		} else if !slices.Contains(l.Search, name) {
			l.Search = append(l.Search, name)
		}
	}
	if len(l.Search) == 0 && len(found) > 1 {
		l.Search = found
	}
}

// readRoutes reads the routes into l: from option 121, else from option 249 (its predecessor), else
// from options 3 and 33. An unusable option counts as missing. RFC 3442 forbids the combination of
// option 121 with options 3 and 33.
func readRoutes(m *dhcpv4.DHCPv4, l *Lease, note func(string)) {
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionClasslessStaticRoute, classlessMicrosoft} {
		routes, err := classless(m.Options.Get(code), l.Address)
		if err != nil {
			note(fmt.Sprintf("routes (option %d): %v", code.Code(), err))
			continue
		}
		if len(routes) > 0 {
			l.Routes = routes
			return
		}
	}
	for _, a := range addrs(m.Options.Get(dhcpv4.OptionRouter), l.Address.Addr(), "routers (option 3)", note) {
		if usableRouter(a, l.Address) {
			l.Routes = []Route{{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Via: a}}
			break
		}
		note(fmt.Sprintf("routers (option 3): %s is not an address of a router", a))
	}
	l.Routes = append(l.Routes, classful(m.Options.Get(dhcpv4.OptionStaticRoutingTable), l.Address, note)...)
}

// addr converts an IPv4 address. It returns an invalid address for any other value.
func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip.To4())
	return a
}

// broadcast returns the broadcast address of a subnet, which is its last address.
func broadcast(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		a[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(a)
}
