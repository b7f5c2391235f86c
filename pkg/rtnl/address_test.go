//go:build linux

package rtnl

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestAddressMessage encodes and decodes addresses; the tests of machined/network use the kernel's
// decoder.
func TestAddressMessage(t *testing.T) {
	for _, s := range []string{"10.0.0.5/24", "10.0.0.5/32", "10.0.0.4/31", "127.0.0.1/8", "fe80::1/64", "2001:db8::5/128"} {
		want := Address{Index: 3, Prefix: netip.MustParsePrefix(s), Protocol: 79, Flags: unix.IFA_F_NODAD | unix.IFA_F_PERMANENT}
		b, err := marshalAddress(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseAddress(b)
		if err != nil || got != want {
			t.Errorf("%s: read back as %+v, %v", s, got, err)
		}
		c, ok := parseChange(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWADDR}, Data: b})
		if !ok || c != (Change{Kind: AddressChanged, Index: 3, Protocol: 79}) {
			t.Errorf("%s: the notification is %+v, %v", s, c, ok)
		}
	}
	if _, err := parseAddress([]byte{2}); err == nil {
		t.Error("a cut message is taken")
	}
}

func TestLastAddress(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.5/24": "10.0.0.255", "10.1.2.3/8": "10.255.255.255", "192.0.2.9/30": "192.0.2.11"} {
		if got := lastAddress(netip.MustParsePrefix(in)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
}
