package dhcp6

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/orlop-os/orlop/machined/network/domains"
)

// Reply has the data of a server's message that the state machine needs.
type Reply struct {
	Advertise  bool // true: an Advertise message, false: a Reply message
	XID        uint32
	Rapid      bool // the Reply answers a Solicit (rapid commit, option 14)
	Preference int  // preference of an Advertise (option 7)
	Lease      Lease
	NoBinding  bool   // the server does not know the lease
	Withdrawn  bool   // the server ends the lifetime of an address or a prefix
	Rejects    string // the reason why the server grants nothing; may be empty
	// MaxWait is SOL_MAX_RT (option 82), the longest interval between messages without a lease; 0
	// without the option.
	MaxWait time.Duration
	// Notes describe the unusable and ignored parts of the message, one line each.
	Notes []string
}

// The maximum numbers of the entries that the client uses of a list, of the notes, and of the
// options of a message.
const (
	maxAddresses = 16
	maxNotes     = 8
	maxOptions   = 256
)

// defaultRefresh and minRefresh are the default and the minimum of the time until settings are
// requested again (RFC 8415 sections 7.6 and 21.23). minMaxWait and maxMaxWait are the limits of
// SOL_MAX_RT (section 21.24).
const (
	defaultRefresh = 24 * time.Hour
	minRefresh     = 10 * time.Minute
	minMaxWait     = time.Minute
	maxMaxWait     = 24 * time.Hour
	// minRenewal is the minimum of T1 and T2 that the client chooses. It prevents a loop with a
	// server that grants a preferred lifetime of 0.
	minRenewal = time.Second
)

// grants reports whether a message grants the essential request of a mode: an address, or a prefix
// if the mode requests no addresses.
func (r *Reply) grants(m Mode) bool {
	if m.Addresses {
		return len(r.Lease.Addresses) > 0
	}
	return len(r.Lease.Prefixes) > 0
}

// errNotDHCP is the error for data that is not a message of a DHCPv6 server to this client. Any
// host can send data to the port of the client.
var errNotDHCP = errors.New("not an answer of a DHCPv6 server")

// parser is the state of parse.
type parser struct {
	identity
	r       *Reply
	options map[dhcpv6.OptionCode][][]byte
}

// identity is the identity of a client on a link.
type identity struct {
	duid []byte
	iaid [4]byte
}

// parse parses a datagram. It returns errNotDHCP for a message to another client, and for data that
// is no message of a server. It fails for a message without a valid server identifier.
func parse(b []byte, self identity) (*Reply, error) {
	const header = 4
	if len(b) < header || b[0] != byte(dhcpv6.MessageTypeAdvertise) && b[0] != byte(dhcpv6.MessageTypeReply) {
		return nil, errNotDHCP
	}
	p := parser{identity: self, options: map[dhcpv6.OptionCode][][]byte{}}
	p.r = &Reply{Advertise: b[0] == byte(dhcpv6.MessageTypeAdvertise), XID: uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])}
	if err := p.split(b[header:]); err != nil {
		return nil, err
	}
	client, server := p.one(dhcpv6.OptionClientID), p.one(dhcpv6.OptionServerID)
	if string(client) != string(p.duid) {
		return nil, errNotDHCP
	}
	// A DUID is a type of 2 bytes, followed by 1 to 128 bytes (RFC 8415 section 11.1).
	if len(server) < 3 || len(server) > 130 {
		return nil, errors.New("DHCPv6 message: has no server identifier (option 2)")
	}
	p.r.Lease.Server = hex.EncodeToString(server)
	p.readStatus()
	p.readAssociations()
	p.readSettings()
	return p.r, nil
}

// split adds the options in b to p.options, by code. It does not decode them.
func (p *parser) split(b []byte) error {
	for n := 0; len(b) > 0; n++ {
		if n == maxOptions {
			return fmt.Errorf("DHCPv6 message: has more than %d options", maxOptions)
		}
		if len(b) < 4 {
			return errors.New("DHCPv6 message: an option is truncated")
		}
		code, size := dhcpv6.OptionCode(b[0])<<8|dhcpv6.OptionCode(b[1]), int(b[2])<<8|int(b[3])
		if len(b) < 4+size {
			return fmt.Errorf("DHCPv6 message: option %d is truncated", code)
		}
		p.options[code] = append(p.options[code], b[4:4+size])
		b = b[4+size:]
	}
	return nil
}

// one returns the first option with a code; nil if there is none.
func (p *parser) one(code dhcpv6.OptionCode) []byte {
	if all := p.options[code]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// note adds a line to the notes of the Reply.
func (p *parser) note(format string, args ...any) {
	if len(p.r.Notes) < maxNotes {
		p.r.Notes = append(p.r.Notes, fmt.Sprintf(format, args...))
	}
}

// readStatus reads the options that describe the message itself: rapid commit, preference,
// SOL_MAX_RT and status code.
func (p *parser) readStatus() {
	_, p.r.Rapid = p.options[dhcpv6.OptionRapidCommit]
	if b := p.one(dhcpv6.OptionPreference); len(b) == 1 {
		p.r.Preference = int(b[0])
	}
	if b := p.one(dhcpv6.OptionSolMaxRT); len(b) == 4 {
		if d := seconds(b); d >= minMaxWait && d <= maxMaxWait {
			p.r.MaxWait = d
		}
	}
	if b := p.one(dhcpv6.OptionStatusCode); len(b) >= 2 {
		p.status(iana.StatusCode(b[0])<<8|iana.StatusCode(b[1]), string(b[2:]))
	}
}

// status records a status code of the message or of an identity association in the Reply.
func (p *parser) status(code iana.StatusCode, text string) {
	switch code {
	case iana.StatusSuccess:
	case iana.StatusNoBinding:
		p.r.NoBinding = true
	default:
		p.r.Rejects = fmt.Sprintf("%v (%.80q)", code, text)
	}
}

// readAssociations reads the addresses and prefixes of the client's identity associations, and
// their times.
func (p *parser) readAssociations() {
	l := &p.r.Lease
	l.T1, l.T2 = Forever, Forever
	for _, b := range p.options[dhcpv6.OptionIANA] {
		o, err := dhcpv6.ParseOption(dhcpv6.OptionIANA, b)
		ia, ok := o.(*dhcpv6.OptIANA)
		if err != nil || !ok {
			p.note("addresses (option 3): %v", err)
			continue
		}
		if ia.IaId == p.iaid {
			p.readAddresses(ia)
		}
	}
	for _, b := range p.options[dhcpv6.OptionIAPD] {
		o, err := dhcpv6.ParseOption(dhcpv6.OptionIAPD, b)
		ia, ok := o.(*dhcpv6.OptIAPD)
		if err != nil || !ok {
			p.note("prefixes (option 25): %v", err)
			continue
		}
		if ia.IaId == p.iaid {
			p.readPrefixes(ia)
		}
	}
}

func (p *parser) readAddresses(ia *dhcpv6.OptIANA) {
	if s := ia.Options.Status(); s != nil {
		p.status(s.StatusCode, s.StatusMessage)
	}
	if ia.T1 > ia.T2 && ia.T2 > 0 {
		p.note("addresses (option 3): T1 %v is after T2 %v", ia.T1, ia.T2)
		return
	}
	l, preferred := &p.r.Lease, Forever
	for _, o := range ia.Options.Options.Get(dhcpv6.OptionIAAddr) {
		a, ok := o.(*dhcpv6.OptIAAddress)
		if !ok {
			continue
		}
		addr, _ := netip.AddrFromSlice(a.IPv6Addr)
		switch {
		case !usable(addr):
			p.note("addresses (option 3): %s is not an address of a machine", addr)
		case a.PreferredLifetime > a.ValidLifetime:
			p.note("addresses (option 3): %s is preferred longer than valid", addr)
		case a.ValidLifetime == 0:
			p.r.Withdrawn = true
		case !l.Has(addr) && len(l.Addresses) < maxAddresses:
			l.Addresses = append(l.Addresses, Address{Addr: addr, Preferred: a.PreferredLifetime, Valid: a.ValidLifetime})
			preferred = min(preferred, a.PreferredLifetime)
		}
	}
	if len(l.Addresses) > 0 {
		p.times(ia.T1, ia.T2, preferred)
	}
}

func (p *parser) readPrefixes(ia *dhcpv6.OptIAPD) {
	if s := ia.Options.Status(); s != nil {
		if s.StatusCode == iana.StatusNoPrefixAvail {
			p.note("the server delegates no prefix: %.80q", s.StatusMessage)
		} else {
			p.status(s.StatusCode, s.StatusMessage)
		}
	}
	if ia.T1 > ia.T2 && ia.T2 > 0 {
		p.note("prefixes (option 25): T1 %v is after T2 %v", ia.T1, ia.T2)
		return
	}
	l, preferred := &p.r.Lease, Forever
	for _, o := range ia.Options.Options.Get(dhcpv6.OptionIAPrefix) {
		a, ok := o.(*dhcpv6.OptIAPrefix)
		if !ok || a.Prefix == nil {
			continue
		}
		addr, _ := netip.AddrFromSlice(a.Prefix.IP)
		bits, size := a.Prefix.Mask.Size()
		prefix := netip.PrefixFrom(addr, bits).Masked()
		switch {
		case size != 128 || bits < 16 || bits > 64 || !usable(prefix.Addr()):
			p.note("prefixes (option 25): %s is not a prefix of /16 to /64", a.Prefix)
		case a.PreferredLifetime > a.ValidLifetime:
			p.note("prefixes (option 25): %s is preferred longer than valid", prefix)
		case a.ValidLifetime == 0:
			p.r.Withdrawn = true
		case len(l.Prefixes) < maxAddresses && !slices.ContainsFunc(l.Prefixes, func(o Prefix) bool { return o.Prefix == prefix }):
			l.Prefixes = append(l.Prefixes, Prefix{Prefix: prefix, Preferred: a.PreferredLifetime, Valid: a.ValidLifetime})
			preferred = min(preferred, a.PreferredLifetime)
		}
	}
	if len(l.Prefixes) > 0 {
		p.times(ia.T1, ia.T2, preferred)
	}
}

// times sets T1 and T2 of the lease to the earliest values of all identity associations. If the
// server sends 0 for T1 or T2, the client chooses both: half and four fifths of the preferred
// lifetime, as RFC 8415 section 21.4 recommends, but at least minRenewal.
func (p *parser) times(t1, t2, preferred time.Duration) {
	if t1 == 0 || t2 == 0 {
		t1, t2 = Forever, Forever
		if preferred < Forever {
			t1, t2 = max(preferred/2, minRenewal), max(preferred*4/5, minRenewal)
		}
	}
	p.r.Lease.T1, p.r.Lease.T2 = min(p.r.Lease.T1, t1), min(p.r.Lease.T2, t2)
}

// readSettings reads the network settings of the message. For a message without addresses and
// prefixes, it also sets T1 and T2 to the time until the settings are requested again.
func (p *parser) readSettings() {
	l := &p.r.Lease
	l.DNS = p.addrs(dhcpv6.OptionDNSRecursiveNameServer, "resolvers")
	var err error
	if l.Search, err = domains.Parse(p.one(dhcpv6.OptionDomainSearchList)); err != nil {
		p.note("search list (option 24): %v", err)
	}
	p.readTimeServers()
	if l.stateless() {
		l.T1 = defaultRefresh
		if b := p.one(dhcpv6.OptionInformationRefreshTime); len(b) == 4 {
			l.T1 = max(seconds(b), minRefresh)
		}
		l.T2 = l.T1
	}
}

// addrs returns the distinct usable addresses of an option, at most maxAddresses. It adds a note
// for each unusable address.
func (p *parser) addrs(code dhcpv6.OptionCode, what string) (out []netip.Addr) {
	b := p.one(code)
	if len(b)%16 != 0 {
		p.note("%s (option %d): the length does not match a list of addresses", what, code)
	}
	for ; len(b) >= 16 && len(out) < maxAddresses; b = b[16:] {
		a := netip.AddrFrom16([16]byte(b))
		switch {
		case !usable(a) || p.r.Lease.Has(a):
			p.note("%s (option %d): %s is not an address of another machine", what, code, a)
		case !slices.Contains(out, a):
			out = append(out, a)
		}
	}
	return out
}

// Suboptions of the option for time servers (RFC 5908 section 4).
const (
	timeServerAddr = 1
	timeServerName = 3
)

// readTimeServers reads option 56 (RFC 5908), else option 31 (RFC 4075). It ignores multicast
// groups, because the machine queries single servers.
func (p *parser) readTimeServers() {
	l := &p.r.Lease
	add := func(server string) {
		if !slices.Contains(l.NTP, server) && len(l.NTP) < maxAddresses {
			l.NTP = append(l.NTP, server)
		}
	}
	for _, b := range p.options[dhcpv6.OptionNTPServer] {
		sub := parser{options: map[dhcpv6.OptionCode][][]byte{}}
		if err := sub.split(b); err != nil {
			p.note("time servers (option 56): a suboption is truncated")
		}
		for _, b := range sub.options[timeServerAddr] {
			if a, ok := netip.AddrFromSlice(b); ok && usable(a) {
				add(a.String())
			} else {
				p.note("time servers (option 56): %x is not an address of a machine", b[:min(len(b), 16)])
			}
		}
		for _, b := range sub.options[timeServerName] {
			names, err := domains.Parse(b)
			if err != nil {
				p.note("time servers (option 56): %v", err)
			}
			for _, n := range names {
				add(n)
			}
		}
	}
	if len(l.NTP) == 0 {
		for _, a := range p.addrs(dhcpv6.OptionSNTPServerList, "time servers") {
			add(a.String())
		}
	}
}

func seconds(b []byte) time.Duration {
	return time.Duration(uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3])) * time.Second
}

// usable reports whether an IPv6 address can be the address of a machine, as seen from this machine
// and its pods. A link-local address is not usable, because it needs a zone.
func usable(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.IsGlobalUnicast()
}

// summary returns the notes as a single text for the operator.
func (r *Reply) summary() string { return strings.Join(r.Notes, "; ") }
