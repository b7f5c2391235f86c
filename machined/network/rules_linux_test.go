package network

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestDecodeRule checks that decodeRule ignores each rule of another component, even a rule that
// the library cannot decode. It also checks that decodeRule returns the machine's own rules, and an
// error if it cannot decode an own rule.
func TestDecodeRule(t *testing.T) {
	const sportMask = 28 // FRA_SPORT_MASK of Linux 6.18
	own := Rule{Priority: 500, Table: 100, Mark: 7, Incoming: "eth0", From: netip.MustParsePrefix("10.0.0.0/8"), To: netip.MustParsePrefix("192.0.2.1/32")}
	six := Rule{IPv6: true, Priority: 501, Table: 100, From: netip.MustParsePrefix("2001:db8::/32")}
	foreign := func(protocol byte) []byte {
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.FRA_TABLE, Data: []byte{100, 0, 0, 0}}, {Type: unix.FRA_PROTOCOL, Data: []byte{protocol}},
			{Type: unix.FRA_SPORT_RANGE, Data: []byte{80, 0, 80, 0}}, {Type: sportMask, Data: []byte{0xff, 0xff}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{unix.AF_INET, 0, 0, 0, 100, 0, 0, frActToTable, 0, 0, 0, 0}, attributes...)
	}
	for _, c := range []struct {
		name    string
		message []byte
		rule    Rule
		own     bool
		fails   bool
	}{
		{name: "an own rule", message: encodeRule(t, own), rule: own, own: true},
		{name: "an own rule for IPv6", message: encodeRule(t, six), rule: six, own: true},
		{name: "a rule of another component, with an unknown attribute", message: foreign(unix.RTPROT_STATIC)},
		{name: "an own rule with an unknown attribute", message: foreign(Protocol), fails: true},
		{name: "a rule of another address family", message: append([]byte{128}, make([]byte, ruleHeader-1)...)},
		{name: "a message that is too short", message: make([]byte, ruleHeader-1), fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, isOwn, err := decodeRule(c.message)
			if r != c.rule || isOwn != c.own || (err != nil) != c.fails {
				t.Errorf("got %+v, %v, %v, want %+v, %v, error %v", r, isOwn, err, c.rule, c.own, c.fails)
			}
		})
	}
}

func encodeRule(t *testing.T, r Rule) []byte {
	t.Helper()
	b, err := ruleMessage(r).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
