package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
)

// Language describes the expressions that Compile accepts. An expression means the same as in
// tcpdump, except for the differences that the last line states.
const Language = `A filter is made of
  tcp, udp, icmp, icmp6, arp, ip, ip6          packets of a protocol; ip is IPv4
  host ADDRESS                                 from or to an address; with IPv4, ARP about it too
  net ADDRESS/BITS                             from or to a network
  port NUMBER                                  from or to a port of TCP, UDP or SCTP
  src or dst before host, net and port         only from, only to
  tcp or udp before port; ip, ip6 or arp before host and net
  not, and, or, parentheses                    an expression with both and and or needs parentheses
After IPv6 extension headers, no protocol and no port is found. A VLAN tag makes no difference.`

// protocols maps the words that are a complete filter on their own.
var protocols = map[string]code{
	"ip":    etherType(etherIPv4),
	"ip6":   etherType(etherIPv6),
	"arp":   etherType(etherARP),
	"tcp":   or(protocol4(protoTCP), protocol6(protoTCP)),
	"udp":   or(protocol4(protoUDP), protocol6(protoUDP)),
	"icmp":  protocol4(protoICMP),
	"icmp6": protocol6(protoICMP6),
}

// families has the words that can precede "host" and "net". transports has the words that can
// precede "port".
var (
	families   = map[string]uint32{"": 0, "ip": etherIPv4, "ip6": etherIPv6, "arp": etherARP}
	transports = map[string][]uint32{"": {protoTCP, protoUDP, protoSCTP}, "tcp": {protoTCP}, "udp": {protoUDP}}
)

// Compile compiles an expression of Language to a filter; for an empty expression it returns nil,
// which means no filter.
func Compile(expression string) ([]bpf.RawInstruction, error) {
	p := parser{words: wordsOf(expression)}
	if len(p.words) == 0 {
		return nil, nil
	}
	c, err := p.joined()
	if err == nil && len(p.words) > 0 {
		err = fmt.Errorf("unexpected %q; expected and, or, or the end", p.words[0])
	}
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", expression, err)
	}
	filter, err := bpf.Assemble(slices.Concat(c, code{
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: MaxSnaplen},
	}))
	if err == nil {
		_, err = Program(Ethernet, filter) // checks the length with the prologue
	}
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", expression, err)
	}
	return filter, nil
}

// wordsOf splits an expression at spaces and around parentheses.
func wordsOf(expression string) []string {
	return strings.Fields(strings.NewReplacer("(", " ( ", ")", " ) ").Replace(expression))
}

// parser holds the words that are not parsed yet.
type parser struct{ words []string }

// next consumes and returns the next word; "" at the end.
func (p *parser) next() string {
	if len(p.words) == 0 {
		return ""
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

// oneOf consumes and returns the next word if this word is in words. Otherwise it consumes nothing
// and returns "".
func (p *parser) oneOf(words ...string) string {
	if len(p.words) == 0 || !slices.Contains(words, p.words[0]) {
		return ""
	}
	return p.next()
}

// joined parses parts that are joined only by "and", or only by "or". It rejects a mixture without
// parentheses: in tcpdump, "and" and "or" have the same precedence, which most users do not expect.
func (p *parser) joined() (code, error) {
	c, err := p.negated()
	for by := ""; err == nil; {
		word := p.oneOf("and", "or")
		if word == "" {
			return c, nil
		}
		if by != "" && by != word {
			return nil, errors.New("and is combined with or: add parentheses")
		}
		var other code
		if other, err = p.negated(); err != nil {
			break
		}
		if by = word; word == "and" {
			c = and(c, other)
		} else {
			c = or(c, other)
		}
	}
	return nil, err
}

// negated parses a part with an optional "not".
func (p *parser) negated() (code, error) {
	if p.oneOf("not") != "" {
		c, err := p.negated()
		return not(c), err
	}
	if p.oneOf("(") == "" {
		return p.primitive()
	}
	c, err := p.joined()
	if err == nil && p.oneOf(")") == "" {
		err = errors.New("a closing parenthesis is missing")
	}
	return c, err
}

// primitive parses a part without operators: "tcp", "port 80", "tcp dst port 80".
func (p *parser) primitive() (code, error) {
	protocol := p.oneOf("tcp", "udp", "icmp", "icmp6", "arp", "ip", "ip6")
	direction := p.oneOf("src", "dst")
	kind := p.oneOf("host", "net", "port")
	switch {
	case kind == "" && direction == "" && protocol != "":
		return protocols[protocol], nil
	case kind == "" && direction == "":
		if word := p.next(); word != "" {
			return nil, fmt.Errorf("%q is not known; expected a protocol, host, net, port, src, dst, not or a parenthesis", word)
		}
		return nil, errors.New("it is incomplete")
	case kind == "":
		kind = "host" // as in tcpdump
	}
	if kind == "port" {
		of, ok := transports[protocol]
		if !ok {
			return nil, fmt.Errorf("%s has no ports", protocol)
		}
		word := p.next()
		number, err := strconv.ParseUint(word, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("port %q: expected a number from 0 to 65535", word)
		}
		return port(of, direction, uint32(number)), nil
	}
	family, ok := families[protocol]
	if !ok {
		return nil, fmt.Errorf("%s is not permitted before %s: write \"%s and %s …\"", protocol, kind, protocol, kind)
	}
	prefix, err := prefixOf(kind, p.next())
	if err == nil && family != 0 && prefix.Addr().Is6() != (family == etherIPv6) {
		err = fmt.Errorf("%s has no addresses such as %s", protocol, prefix.Addr())
	}
	if err != nil {
		return nil, err
	}
	return network(family, direction, prefix), nil
}

// prefixOf parses the address of a host or a network.
func prefixOf(kind, word string) (netip.Prefix, error) {
	if kind == "host" {
		addr, err := netip.ParseAddr(word)
		if err != nil || addr.Zone() != "" || addr.Is4In6() {
			return netip.Prefix{}, fmt.Errorf("host %q: expected an address; names are not looked up", word)
		}
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(word)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("net %q: expected an address with a prefix length, as in 10.0.0.0/8", word)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("net %s: bits are set after the first %d; the network is %s", word, prefix.Bits(), prefix.Masked())
	}
	return prefix, nil
}
