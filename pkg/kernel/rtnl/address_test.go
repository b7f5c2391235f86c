//go:build linux

package rtnl

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestAddressMessage encodes addresses and decodes them again. In the tests of machined/network,
// the kernel decodes such messages.
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
		if !ok || !reflect.DeepEqual(c, Change{Kind: AddressChanged, Index: 3, Protocol: 79}) {
			t.Errorf("%s: the notification is %+v, %v", s, c, ok)
		}
	}
	if _, err := parseAddress([]byte{2}); err == nil {
		t.Error("parseAddress accepts a truncated message")
	}
}

func TestLastAddress(t *testing.T) {
	for in, want := range map[string]string{"10.0.0.5/24": "10.0.0.255", "10.1.2.3/8": "10.255.255.255", "192.0.2.9/30": "192.0.2.11"} {
		if got := lastAddress(netip.MustParsePrefix(in)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v, want %s", in, got, want)
		}
	}
}

// TestRouterOption checks the notification of an option of a router advertisement.
func TestRouterOption(t *testing.T) {
	option := []byte{31, 1, 0, 0, 0, 0, 0, 9}
	source := append([]byte{20, 0, optionSource, 0}, netip.MustParseAddr("fe80::1").AsSlice()...)
	whole := slices.Concat([]byte{unix.AF_INET6, 0, 8, 0, 3, 0, 0, 0, advertisementType, 0, 0, 0, 0, 0, 0, 0}, option, source)
	parse := func(b []byte) (Change, bool) {
		return parseChange(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWNDUSEROPT}, Data: b})
	}
	want := Change{Kind: RouterOption, Index: 3, Router: netip.MustParseAddr("fe80::1"), Option: option}
	if c, ok := parse(whole); !ok || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v; want %+v", c, ok, want)
	}
	want.Router = netip.Addr{}
	if c, ok := parse(whole[:24]); !ok || !reflect.DeepEqual(c, want) {
		t.Errorf("without a source: %+v, %v; want %+v", c, ok, want)
	}
	other := slices.Clone(whole)
	other[optionTypeAt] = 136
	for name, b := range map[string][]byte{"truncated in the header": whole[:15], "truncated in the option": whole[:20], "option of another ICMPv6 message": other} {
		if c, ok := parse(b); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestAdvertisementChanged checks that parseChange distinguishes a notification about the flags of
// a router advertisement from a notification about the link. Both have the type RTM_NEWLINK; the
// first has the family AF_INET6.
func TestAdvertisementChanged(t *testing.T) {
	data := make([]byte, unix.SizeofIfInfomsg)
	data[0], data[4] = unix.AF_INET6, 3
	c, ok := parseChange(netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWLINK}, Data: data})
	if want := (Change{Kind: AdvertisementChanged, Index: 3}); !ok || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v; want %+v", c, ok, want)
	}
}
