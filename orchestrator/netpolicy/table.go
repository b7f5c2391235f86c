package netpolicy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Table is what our nftables table holds. Sets and chains are named within it; rules name them.
type Table struct {
	Sets   []Set
	Chains []Chain
}

// Kind says what the elements of a set are.
type Kind int

// The kinds of sets. All but Blocks are hash tables in the kernel.
const (
	Addresses Kind = iota // addresses
	Blocks                // ranges of addresses that neither overlap nor touch
	Pairs                 // an address, and the same again: sender and destination
	Endpoints             // address, protocol, port
	Verdicts              // a map from addresses to chains
)

// Set is a set of one address family.
type Set struct {
	Name     string
	Kind     Kind
	V6       bool
	Elements []Element // in order, none twice
}

// Element is an element of a set; which fields it has follows from the set's kind.
type Element struct {
	Address  netip.Addr
	Last     netip.Addr // of Blocks: the range's last address
	Protocol uint8      // of Endpoints: the IP protocol number
	Port     uint16     // of Endpoints
	Chain    string     // of Verdicts: where the packet goes on
}

// Chain is a list of rules. A packet that comes to the end goes back to the rule that sent it
// there, and at the end of a chain with a hook, on its way.
type Chain struct {
	Name     string
	Forward  bool  // packets that are forwarded or bridged begin here
	Priority int32 // of a chain with Forward: lower ones come first; each has to let a packet pass
	Rules    []Rule
}

// Rule is a list of matches and what happens to a packet that fits them all.
type Rule struct {
	Matches []Match
	Verdict Verdict
	Chain   string // for Jump
}

// Verdict is what happens to a packet.
type Verdict int

// The verdicts.
const (
	Accept Verdict = iota // it passes the chain with a hook that it began in
	Drop                  // it is gone
	Jump                  // it goes on in another chain and may come back
	// it goes on in the chain that the map of the last match names, if it names one
	GotoReturn
)

// Test is what a match looks at.
type Test int

// The tests.
const (
	// the packet belongs to a connection that was let pass, or is an error about one
	Established Test = iota
	// IPv6 neighbour solicitation or advertisement that was not routed (RFC 4861: types 135 and
	// 136, hop limit 255)
	NeighborDiscovery
	In                  // it came in on the link
	Source              // its sender is in the set
	Destination         // its destination is in the set
	Self                // its sender and destination are a pair of the set
	DestinationEndpoint // its destination, protocol and destination port are in the set
	// its protocol is the one given, its destination port from the first to the last
	Ports
	Out // it goes out on the link
)

// Match is one test of a packet.
type Match struct {
	Test        Test
	Set         string // for Source, Destination, Self, DestinationEndpoint
	V6          bool   // of that set; packets of the other family do not fit, with Not either
	Link        string // for In, Out
	Not         bool   // for In, Out, Source, Destination
	Protocol    uint8  // for Ports
	First, Last uint16 // for Ports
}

// String renders the table as nft(8) would show it.
func (t Table) String() string {
	var b strings.Builder
	for _, s := range t.Sets {
		word := "set"
		if s.Kind == Verdicts {
			word = "map"
		}
		fmt.Fprintf(&b, "%s %s { type %s\n", word, s.Name, s.typeName())
		for _, e := range s.Elements {
			fmt.Fprintf(&b, "\t%s\n", s.element(e))
		}
		b.WriteString("}\n")
	}
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "chain %s {\n", c.Name)
		if c.Forward {
			fmt.Fprintf(&b, "\ttype filter hook forward priority %d; policy accept\n", c.Priority)
		}
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t%s\n", r)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// Fingerprint tells tables apart: the same for the same table only.
func (t Table) Fingerprint() string {
	sum := sha256.Sum256([]byte(t.String()))
	return hex.EncodeToString(sum[:])
}

func (s Set) typeName() string {
	address := "ipv4_addr"
	if s.V6 {
		address = "ipv6_addr"
	}
	switch s.Kind {
	case Blocks:
		return address + "; flags interval"
	case Pairs:
		return address + " . " + address
	case Endpoints:
		return address + " . inet_proto . inet_service"
	case Verdicts:
		return address + " : verdict"
	}
	return address
}

func (s Set) element(e Element) string {
	switch s.Kind {
	case Blocks:
		return fmt.Sprintf("%s-%s", e.Address, e.Last)
	case Pairs:
		return fmt.Sprintf("%[1]s . %[1]s", e.Address)
	case Endpoints:
		return fmt.Sprintf("%s . %s . %d", e.Address, protocolName(e.Protocol), e.Port)
	case Verdicts:
		return fmt.Sprintf("%s : goto %s", e.Address, e.Chain)
	}
	return e.Address.String()
}

func (r Rule) String() string {
	var words []string
	for i, m := range r.Matches {
		text := m.String()
		if r.Verdict == GotoReturn && i == len(r.Matches)-1 {
			text = strings.Replace(text, "@", "vmap @", 1)
		}
		words = append(words, text)
	}
	switch r.Verdict {
	case Accept:
		words = append(words, "accept")
	case Drop:
		words = append(words, "drop")
	case Jump:
		words = append(words, "jump "+r.Chain)
	}
	return strings.Join(words, " ")
}

func (m Match) String() string {
	family, not := "ip", ""
	if m.V6 {
		family = "ip6"
	}
	if m.Not {
		not = "!= "
	}
	switch m.Test {
	case Established:
		return "ct state established,related"
	case NeighborDiscovery:
		return "ip6 hoplimit 255 icmpv6 type 135-136"
	case In:
		return fmt.Sprintf("iifname %s%q", not, m.Link)
	case Out:
		return fmt.Sprintf("oifname %s%q", not, m.Link)
	case Source:
		return fmt.Sprintf("%s saddr %s@%s", family, not, m.Set)
	case Destination:
		return fmt.Sprintf("%s daddr %s@%s", family, not, m.Set)
	case Self:
		return fmt.Sprintf("%[1]s saddr . %[1]s daddr @%[2]s", family, m.Set)
	case DestinationEndpoint:
		return fmt.Sprintf("%s daddr . meta l4proto . th dport @%s", family, m.Set)
	}
	ports := fmt.Sprint(m.First)
	if m.Last != m.First {
		ports = fmt.Sprintf("%d-%d", m.First, m.Last)
	}
	return fmt.Sprintf("meta l4proto %s th dport %s", protocolName(m.Protocol), ports)
}

// compare orders elements.
func (e Element) compare(o Element) int {
	return cmp.Or(e.Address.Compare(o.Address), cmp.Compare(e.Protocol, o.Protocol), cmp.Compare(e.Port, o.Port))
}

// ordered returns the elements in order, each once.
func ordered(elements []Element) []Element {
	slices.SortFunc(elements, Element.compare)
	return slices.Compact(elements)
}

// IP protocol numbers (IANA).
const (
	tcp    = 6
	udp    = 17
	icmpv6 = 58
	// hopLimit is where an IPv6 header says it (RFC 8200, section 3), in bytes.
	hopLimit = 7
	sctp     = 132
)

var protocols = map[uint8]string{tcp: "tcp", udp: "udp", sctp: "sctp"}

func protocolName(number uint8) string { return protocols[number] }
