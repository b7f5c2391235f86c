package dhcp

import (
	"bytes"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// message is an ACK of a server. The fields options, file and sname are the bytes of the three
// fields of the packet that can contain options.
type message struct {
	name                 string
	options, file, sname []byte
	pad                  int  // length to which the message is padded with zeros; 0 for no padding
	noEnd                bool // the message has no option END
}

// grantOptions are the options that every message has: type ACK, server 192.0.2.1, a lease time of
// an hour, and the subnet mask /24.
var grantOptions = []byte{53, 1, 5, 54, 4, 192, 0, 2, 1, 51, 4, 0, 0, 14, 16, 1, 4, 255, 255, 255, 0}

func (c message) bytes() []byte {
	b := make([]byte, headerLength)
	b[0], b[1], b[2] = 2, 1, 6
	copy(b[16:], []byte{192, 0, 2, 5})
	copy(b[fileAt:], c.file)
	copy(b[snameAt:fileAt], c.sname)
	copy(b[cookieAt:], []byte{99, 130, 83, 99})
	b = slices.Concat(b, grantOptions, c.options)
	if !c.noEnd {
		b = append(b, 255)
	}
	if len(b) < c.pad {
		b = append(b, make([]byte, c.pad-len(b))...)
	}
	return b
}

func option(code byte, value ...byte) []byte {
	return slices.Concat([]byte{code, byte(len(value))}, value)
}

func text(code byte, value string) []byte { return option(code, []byte(value)...) }

// name encodes the labels of a name (RFC 1035), without the zero byte at the end.
func name(labels ...string) []byte {
	var b []byte
	for _, l := range labels {
		b = append(append(b, byte(len(l))), l...)
	}
	return b
}

func search(parts ...[]byte) []byte { return option(119, slices.Concat(parts...)...) }

var (
	overload = func(v byte) []byte { return option(52, v) }
	end      = []byte{255}
	router   = option(3, 192, 0, 2, 254)
	resolver = option(6, 192, 0, 2, 53)
	manyZero = make([]byte, 12)
)

// messages imitate messages of real servers. They are also seeds of FuzzReply.
var messages = []message{
	{name: "two domains", options: text(15, "corp.example lab.example")},
	{name: "two domains, commas, dots and a NUL", options: text(15, "corp.example., lab.example.\x00")},
	{name: "a valid and an invalid domain", options: text(15, "corp.example -bad-")},
	{name: "a domain with a line break", options: text(15, "corp.example\nnameserver 203.0.113.1")},
	{name: "options in file and sname", options: overload(3), file: slices.Concat(router, resolver, end), sname: slices.Concat(text(15, "corp.example"), end)},
	{name: "options in file, which has no END", options: overload(1), file: router},
	{name: "options in sname", options: overload(2), sname: slices.Concat(router, end)},
	{name: "no option 52: file is a name", file: slices.Concat(router, end)},
	{name: "an option 52 with an unknown value", options: overload(7), file: slices.Concat(router, end)},
	{name: "an option in parts, over two fields", options: slices.Concat(overload(1), text(15, "corp.exa")), file: slices.Concat(text(15, "mple"), end)},
	{name: "no END, padded", options: router, noEnd: true, pad: 300},
	{name: "no END, no padding", options: router, noEnd: true},
	{name: "padding before and after an option", options: slices.Concat(manyZero, router, manyZero)},
	{name: "other bytes after END", options: slices.Concat(router, end, []byte{6, 200, 1})},
	{name: "routes in option 249 alone", options: option(249, 24, 198, 51, 100, 192, 0, 2, 9)},
	{name: "routes in 121 and 249", options: slices.Concat(option(249, 0, 192, 0, 2, 7), option(121, 0, 192, 0, 2, 8), router)},
	{name: "a damaged 121, and 249", options: slices.Concat(option(121, 33, 1, 2, 3, 4), option(249, 0, 192, 0, 2, 7))},
	{name: "a damaged 121, and a router", options: slices.Concat(option(121, 24, 1, 2), router)},
	{name: "a route with host bits", options: option(121, 24, 198, 51, 100, 0, 0, 0, 0)},
	{name: "a pointer to a name that ends in a pointer", options: search(
		name("corp", "example"), []byte{0}, name("a"), []byte{0xc0, 0}, name("b"), []byte{0xc0, 14}, []byte{0xc0, 18})},
	{name: "a pointer to itself", options: search(name("corp", "example"), []byte{0}, []byte{0xc0, 14})},
	{name: "two pointers in a circle", options: search([]byte{0xc0, 2}, []byte{0xc0, 0})},
	{name: "a pointer to a later name", options: search(name("corp"), []byte{0xc0, 7}, name("example"), []byte{0})},
	{name: "a truncated pointer", options: search(name("corp", "example"), []byte{0, 0xc0})},
	{name: "a truncated list", options: search(name("corp", "example"), []byte{0, 7, 'l'})},
	{name: "a list in two parts", options: slices.Concat(search(name("corp", "exa")[:7]), search(name("corp", "exa")[7:], []byte{0, 0xc0, 5, 0xc0, 0}))},
	{name: "a label longer than 63", options: search([]byte{64}, bytes.Repeat([]byte{'a'}, 64), []byte{0})},
	{name: "the server identifier twice", options: option(54, 192, 0, 2, 1)},
	{name: "the resolver twice", options: slices.Concat(resolver, resolver)},
	{name: "the domain twice", options: slices.Concat(text(15, "corp.example"), text(15, "corp.example"))},
	{name: "options of no length", options: slices.Concat(option(12), option(15), option(6), option(3), option(119), option(121), option(42), option(26))},
	{name: "invalid resolver addresses", options: option(6, 127, 0, 0, 53, 224, 0, 0, 1, 0, 0, 0, 0, 255, 255, 255, 255, 192, 0, 2, 53, 9)},
}

// TestMessages checks the lease that each message gives, and the note about the part of the message
// that the client does not use. Without an entry in want, the message gives only what grantOptions
// contain.
func TestMessages(t *testing.T) {
	ip := netip.MustParseAddr
	zero := netip.MustParsePrefix("0.0.0.0/0")
	byRouter := []Route{{zero, ip("192.0.2.254")}}
	dns := []netip.Addr{ip("192.0.2.53")}
	want := map[string]Lease{
		"two domains":                                {Domain: "corp.example", Search: []string{"corp.example", "lab.example"}},
		"two domains, commas, dots and a NUL":        {Domain: "corp.example", Search: []string{"corp.example", "lab.example"}},
		"a valid and an invalid domain":              {Domain: "corp.example"},
		"options in file and sname":                  {Routes: byRouter, DNS: dns, Domain: "corp.example"},
		"options in file, which has no END":          {Routes: byRouter},
		"options in sname":                           {Routes: byRouter},
		"an option in parts, over two fields":        {Domain: "corp.example"},
		"no END, padded":                             {Routes: byRouter},
		"no END, no padding":                         {Routes: byRouter},
		"padding before and after an option":         {Routes: byRouter},
		"other bytes after END":                      {Routes: byRouter},
		"routes in option 249 alone":                 {Routes: []Route{{netip.MustParsePrefix("198.51.100.0/24"), ip("192.0.2.9")}}},
		"routes in 121 and 249":                      {Routes: []Route{{zero, ip("192.0.2.8")}}},
		"a damaged 121, and 249":                     {Routes: []Route{{zero, ip("192.0.2.7")}}},
		"a damaged 121, and a router":                {Routes: byRouter},
		"a route with host bits":                     {Routes: []Route{{To: netip.MustParsePrefix("198.51.100.0/24")}}},
		"a pointer to a name that ends in a pointer": {Search: []string{"corp.example", "a.corp.example", "b.a.corp.example"}},
		"a pointer to itself":                        {Search: []string{"corp.example"}},
		"a truncated pointer":                        {Search: []string{"corp.example"}},
		"a truncated list":                           {Search: []string{"corp.example"}},
		"a list in two parts":                        {Search: []string{"corp.exa", "exa"}},
		"the resolver twice":                         {DNS: dns},
		"the domain twice":                           {Domain: "corp.example"},
		"invalid resolver addresses":                 {DNS: dns},
	}
	noted := map[string]string{
		"a domain with a line break":    "option 15",
		"a valid and an invalid domain": "option 15", "a damaged 121, and 249": "option 121", "a damaged 121, and a router": "option 121",
		"a pointer to itself": "option 119", "two pointers in a circle": "option 119", "a pointer to a later name": "option 119",
		"a truncated pointer": "option 119", "a truncated list": "option 119", "a label longer than 63": "option 119",
		"invalid resolver addresses": "127.0.0.53 is not an address of a machine",
	}
	for _, c := range messages {
		t.Run(c.name, func(t *testing.T) {
			m, err := decode(c.bytes())
			if err != nil {
				t.Fatal(err)
			}
			r, err := parseReply(m)
			if err != nil {
				t.Fatal(err)
			}
			l := want[c.name]
			l.Address, l.Server = netip.MustParsePrefix("192.0.2.5/24"), ip("192.0.2.1")
			l.Duration, l.T1, l.T2 = time.Hour, 30*time.Minute, 52*time.Minute+30*time.Second
			if !reflect.DeepEqual(r.Lease, l) {
				t.Errorf("got  %+v\nwant %+v", r.Lease, l)
			}
			notes := strings.Join(r.Notes, "; ")
			if says := noted[c.name]; says == "" && notes != "" || !strings.Contains(notes, says) {
				t.Errorf("notes %q, want one with %q", notes, says)
			}
			delete(want, c.name)
			delete(noted, c.name)
		})
	}
	if len(want)+len(noted) > 0 {
		t.Errorf("the expected values have names without a message: %v, %v", want, noted)
	}
}

// TestCutOff checks that decode rejects a truncated option, and that the error names the field of
// the packet. It also checks that decode rejects data without a complete header or the magic
// cookie.
func TestCutOff(t *testing.T) {
	for _, c := range []message{
		{name: "the field file", options: overload(1), file: slices.Concat(manyZero, bytes.Repeat([]byte{0}, 115), []byte{6})},
		{name: "the field sname", options: overload(2), sname: slices.Concat(bytes.Repeat([]byte{0}, 60), []byte{6, 4, 1, 2})},
		{name: "the options", options: []byte{6, 4, 192, 0}, noEnd: true},
		{name: "the options", options: []byte{6}, noEnd: true},
	} {
		if _, err := decode(c.bytes()); err == nil || !strings.Contains(err.Error(), "option 6 is truncated at the end of "+c.name) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	whole := message{}.bytes()
	other := slices.Clone(whole)
	other[cookieAt]++
	for _, b := range [][]byte{nil, whole[:headerLength-1], other} {
		if m, err := decode(b); m != nil || err != errNotDHCP {
			t.Errorf("%d bytes: %v, %v", len(b), m, err)
		}
	}
}
