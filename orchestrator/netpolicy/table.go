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

// Table is the content of an nftables table. Rules refer to the table's sets and chains by name.
type Table struct {
	Sets   []Set
	Chains []Chain
}

// Kind is the kind of a set's elements.
type Kind int

// The kinds of sets. In the kernel, Blocks is a tree of intervals, and all other kinds are hash
// tables.
const (
	Addresses Kind = iota // addresses
	Blocks                // ranges of addresses with a gap between any two of them
	Pairs                 // the same address twice, as source and destination
	Endpoints             // address, protocol and port
	Verdicts              // a map from addresses to chains
)

// Set is a set of addresses of one family, or of keys that contain such an address.
type Set struct {
	Name     string
	Kind     Kind
	V6       bool
	Elements []Element // sorted, without duplicates
}

// Element is an element of a set. The kind of the set determines the fields that it uses.
type Element struct {
	Address  netip.Addr
	Last     netip.Addr // of Blocks: the last address of the range
	Protocol uint8      // of Endpoints: the IP protocol number
	Port     uint16     // of Endpoints
	Chain    string     // of Verdicts: the chain in which the packet continues
}

// Chain is a list of rules. A packet that reaches the end of a chain returns to the rule that
// jumped to the chain. At the end of a chain with a hook, the packet is accepted.
type Chain struct {
	Name    string
	Forward bool // true: the chain has a hook for forwarded and bridged packets
	// only with Forward: the chain with the lower priority is first; a packet must be accepted by
	// each chain
	Priority int32
	Rules    []Rule
}

// Rule is a list of matches and the verdict for a packet that matches all of them.
type Rule struct {
	Matches []Match
	Verdict Verdict
	Chain   string // the target of Jump
}

// Verdict is the action of a rule on a packet that matches.
type Verdict int

// The verdicts.
const (
	Accept Verdict = iota // the packet is accepted by the present chain with a hook
	Drop                  // the packet is dropped
	Jump                  // the packet continues in another chain, and may return from it
	// The last match of the rule is a lookup in a map. If the map contains the key, the packet
	// continues in the chain of the map's element, without a return to this rule.
	GotoReturn
)

// Test is the kind of a match.
type Test int

// The tests.
const (
	// the packet belongs to an accepted connection, or is an ICMP error for such a connection
	Established Test = iota
	// the packet is an IPv6 neighbor solicitation or advertisement (RFC 4861: types 135 and 136)
	// that no router has forwarded (hop limit 255)
	NeighborDiscovery
	In                  // the packet arrived on the link
	Source              // the source address is in the set
	Destination         // the destination address is in the set
	Self                // source and destination address are a pair of the set
	DestinationEndpoint // destination address, protocol and destination port are in the set
	// the packet has the protocol, and its destination port is between First and Last, inclusive
	Ports
	Out // the packet leaves on the link
)

// Match is a test of a packet.
type Match struct {
	Test Test
	Set  string // for Source, Destination, Self, DestinationEndpoint
	// the family of the set; a packet of the other family does not match, even with Not
	V6          bool
	Link        string // for In, Out
	Not         bool   // true: invert the test, for In, Out, Source, Destination
	Protocol    uint8  // for Ports
	First, Last uint16 // for Ports
}

// String renders the table in the syntax of nft(8).
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

// Fingerprint returns a hash of the table as 64 hexadecimal digits.
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

// compare orders elements by address, protocol and port.
func (e Element) compare(o Element) int {
	return cmp.Or(e.Address.Compare(o.Address), cmp.Compare(e.Protocol, o.Protocol), cmp.Compare(e.Port, o.Port))
}

// ordered sorts the elements in place and returns them without duplicates.
func ordered(elements []Element) []Element {
	slices.SortFunc(elements, Element.compare)
	return slices.Compact(elements)
}

// IP protocol numbers (IANA).
const (
	tcp    = 6
	udp    = 17
	icmpv6 = 58
	// hopLimit is the offset of the hop limit in an IPv6 header (RFC 8200, section 3), in bytes.
	hopLimit = 7
	sctp     = 132
)

var protocols = map[uint8]string{tcp: "tcp", udp: "udp", sctp: "sctp"}

func protocolName(number uint8) string { return protocols[number] }
