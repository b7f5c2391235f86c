package dhcp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// The fixed part of a message (RFC 2131 section 2): its length with the magic cookie, and the
// offsets of the fields sname and file, which can contain options, and of the cookie.
const (
	headerLength = 240
	snameAt      = 44
	fileAt       = 108
	cookieAt     = 236
)

// errNotDHCP is the error for data that is not a DHCP message. Any host can send data to the port
// of the client.
var errNotDHCP = errors.New("not a DHCP message")

// decode parses a message. Options can continue in the fields file and sname (option 52, RFC 2131
// section 4.1). The option END can be missing before padding or the end of the message. If b is no
// DHCP message, decode returns errNotDHCP. If an option is truncated, decode returns an error that
// names the option, and a message with the header and the complete options.
func decode(b []byte) (*dhcpv4.DHCPv4, error) {
	if len(b) < headerLength || !bytes.Equal(b[cookieAt:headerLength], []byte{99, 130, 83, 99}) {
		return nil, errNotDHCP
	}
	m, err := dhcpv4.FromBytes(append(slices.Clone(b[:headerLength]), uint8(dhcpv4.OptionEnd.Code())))
	if err != nil {
		return nil, errNotDHCP
	}
	parts := map[uint8][][]byte{}
	err = collect(parts, b[headerLength:], "the options")
	overload := byte(0)
	if first := parts[dhcpv4.OptionOptionOverload.Code()]; len(first) > 0 && len(first[0]) == 1 {
		overload = first[0][0]
	}
	if overload == 1 || overload == 3 {
		err = errors.Join(err, collect(parts, b[fileAt:cookieAt], "the field file"))
	}
	if overload == 2 || overload == 3 {
		err = errors.Join(err, collect(parts, b[snameAt:fileAt], "the field sname"))
	}
	m.Options = dhcpv4.Options{}
	for code, all := range parts {
		m.Options[code] = join(code, all)
	}
	return m, err
}

// collect adds the options of a field to parts, by option code. It fails at a truncated option.
// where names the field in the error.
func collect(parts map[uint8][][]byte, b []byte, where string) error {
	for len(b) > 0 {
		code := b[0]
		b = b[1:]
		if code == dhcpv4.OptionPad.Code() {
			continue
		}
		if code == dhcpv4.OptionEnd.Code() {
			return nil
		}
		if len(b) == 0 || len(b) < 1+int(b[0]) {
			return fmt.Errorf("option %d is truncated at the end of %s", code, where)
		}
		parts[code] = append(parts[code], b[1:1+int(b[0])])
		b = b[1+int(b[0]):]
	}
	return nil
}

// fixed has the lengths of the options with a fixed length, in bytes, by option code.
var fixed = map[uint8]int{
	dhcpv4.OptionSubnetMask.Code(): 4, dhcpv4.OptionInterfaceMTU.Code(): 2, dhcpv4.OptionIPAddressLeaseTime.Code(): 4,
	dhcpv4.OptionOptionOverload.Code(): 1, dhcpv4.OptionDHCPMessageType.Code(): 1, dhcpv4.OptionServerIdentifier.Code(): 4,
	dhcpv4.OptionRenewTimeValue.Code(): 4, dhcpv4.OptionRebindingTimeValue.Code(): 4,
}

// join returns the value of an option that a message contains several times. It concatenates the
// parts in their order (RFC 3396 section 7), except if the server repeats the whole option. For an
// option with a fixed length, the result is the first part with this length. For other options,
// join skips a repeated part; a part of the maximum length of 255 bytes never counts as repeated.
func join(code uint8, parts [][]byte) []byte {
	n, isFixed := fixed[code]
	if isFixed {
		for _, p := range parts {
			if len(p) == n {
				return p
			}
		}
	}
	var out []byte
	for i, p := range parts {
		again := slices.ContainsFunc(parts[:i], func(o []byte) bool { return bytes.Equal(o, p) })
		if !again || isFixed || len(p) == 255 {
			out = append(out, p...)
		}
	}
	return out
}

// The largest numbers of entries that the client uses from a list.
const (
	maxAddresses = 16
	maxDomains   = 32
	maxRoutes    = 64
)

// addrs returns the distinct usable IPv4 addresses of a list of servers, at most maxAddresses. It
// passes a line for each unusable address to note. The offered address (own) is unusable, because
// the list must name other machines.
func addrs(b []byte, own netip.Addr, what string, note func(string)) []netip.Addr {
	var out []netip.Addr
	if len(b)%4 != 0 {
		note(what + ": its length is not a multiple of 4")
	}
	for ; len(b) >= 4; b = b[4:] {
		if len(out) == maxAddresses {
			note(fmt.Sprintf("%s: more than %d addresses", what, maxAddresses))
			break
		}
		a := netip.AddrFrom4([4]byte(b))
		switch {
		case !usable(a):
			note(fmt.Sprintf("%s: %s is not an address of a machine", what, a))
		case a == own:
			note(fmt.Sprintf("%s: %s is this machine's own address", what, a))
		case !slices.Contains(out, a):
			out = append(out, a)
		}
	}
	return out
}

// usable reports whether an IPv4 address can belong to another machine.
func usable(a netip.Addr) bool {
	return a.Is4() && a.As4()[0] != 0 && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// usableRouter reports whether an address can be that of a router for a machine with the address
// own. The kernel rejects a route by the machine's own address or by the broadcast address of its
// subnet.
func usableRouter(a netip.Addr, own netip.Prefix) bool {
	return usable(a) && a != own.Addr() && (own.Bits() >= 31 || a != broadcast(own))
}

// classless parses the routes of option 121 (RFC 3442) or 249 for a machine with the address own.
// An invalid route makes the whole option invalid.
func classless(b []byte, own netip.Prefix) ([]Route, error) {
	var out []Route
	for len(b) > 0 {
		bits := int(b[0])
		n := (bits + 7) / 8
		if bits > 32 {
			return nil, fmt.Errorf("a prefix has %d bits", bits)
		}
		if len(b) < 1+n+4 {
			return nil, errors.New("it is truncated")
		}
		var to [4]byte
		copy(to[:], b[1:1+n])
		r := Route{To: netip.PrefixFrom(netip.AddrFrom4(to), bits).Masked(), Via: netip.AddrFrom4([4]byte(b[1+n:]))}
		b = b[1+n+4:]
		if r.Via.IsUnspecified() {
			r.Via = netip.Addr{} // 0.0.0.0 means that the destination is on the link (RFC 3442)
		}
		if r.Via.IsValid() && !usableRouter(r.Via, own) {
			return nil, fmt.Errorf("%s is not an address of a router", r.Via)
		}
		if r.To.Addr().IsMulticast() || r.To.Addr().IsLoopback() {
			return nil, fmt.Errorf("%s cannot be routed", r.To)
		}
		if len(out) == maxRoutes {
			return nil, fmt.Errorf("it has more than %d routes", maxRoutes)
		}
		out = append(out, r)
	}
	return out, nil
}

// classful parses the routes of option 33 (RFC 2132 section 5.8), which are pairs of a destination
// and a router. A destination is a network of its address class if its host bits are 0, and a host
// otherwise. classful passes a line for each unusable route to note.
func classful(b []byte, own netip.Prefix, note func(string)) (routes []Route) {
	const what = "routes (option 33)"
	if len(b)%8 != 0 {
		note(what + ": its length is not a multiple of 8")
	}
	for ; len(b) >= 8; b = b[8:] {
		to, via := netip.AddrFrom4([4]byte(b)), netip.AddrFrom4([4]byte(b[4:]))
		switch {
		case len(routes) == maxRoutes-1: // leaves room for the default route
			note(fmt.Sprintf("%s: more than %d routes", what, maxRoutes-1))
			return routes
		case !usable(to):
			note(fmt.Sprintf("%s: %s cannot be a destination", what, to))
			continue
		case !usableRouter(via, own):
			note(fmt.Sprintf("%s: %s is not an address of a router", what, via))
			continue
		}
		ones, _ := net.IP(to.AsSlice()).DefaultMask().Size()
		r := Route{To: netip.PrefixFrom(to, ones), Via: via}
		if r.To != r.To.Masked() {
			r.To = netip.PrefixFrom(to, 32)
		}
		// the first route to a destination has the highest priority
		if !slices.ContainsFunc(routes, func(o Route) bool { return o.To == r.To }) {
			routes = append(routes, r)
		}
	}
	return routes
}

// searchList parses the domains of option 119. The names are encoded as in RFC 1035 section 4.1.4,
// with pointers relative to the beginning of the option (RFC 3397 section 2). If a name is invalid,
// searchList returns an error and the domains before the invalid name.
func searchList(b []byte) ([]string, error) {
	var out []string
	for at := 0; at < len(b); {
		name, next, err := domainAt(b, at)
		if err != nil {
			return out, err
		}
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
		if len(out) > maxDomains {
			return out[:maxDomains], fmt.Errorf("it has more than %d domains", maxDomains)
		}
		at = next
	}
	return out, nil
}

// domainAt returns the name at a position of b, and the position of the next name. A name can end
// in a pointer, and the target of the pointer can end in another pointer. Each target must be
// before the previous target or the start, so the loop ends.
func domainAt(b []byte, at int) (name string, next int, err error) {
	var labels []string
	length, before := 0, at
	for {
		if at >= len(b) {
			return "", 0, errors.New("a name is truncated")
		}
		n := int(b[at])
		switch {
		case n == 0:
			return strings.Join(labels, "."), max(next, at+1), nil
		case n >= 0xc0:
			if at+1 >= len(b) {
				return "", 0, errors.New("a pointer is truncated")
			}
			to := n&^0xc0<<8 | int(b[at+1])
			if to >= before {
				return "", 0, errors.New("a pointer does not point backwards")
			}
			if next == 0 {
				next = at + 2
			}
			at, before = to, to
		case n > 63:
			return "", 0, errors.New("a label has an unknown type")
		case at+1+n > len(b):
			return "", 0, errors.New("a name is truncated")
		default:
			if length += n + 1; length > 254 {
				return "", 0, errors.New("a name is longer than 255 bytes")
			}
			labels = append(labels, string(b[at+1:at+1+n]))
			at += 1 + n
		}
	}
}
