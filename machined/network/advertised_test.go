package network

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// TestAdvertised checks the link eth0, which does not accept router advertisements any more. The
// addresses and routes of earlier router advertisements are removed; the other foreign addresses
// remain. On the link eth1, which accepts router advertisements, all foreign addresses and routes
// remain.
func TestAdvertised(t *testing.T) {
	f := newFake(veth("eth0"), veth("eth1"))
	for index, link := range map[int]string{2: "eth0", 3: "eth1"} {
		add := func(prefix, origin string, advertised bool) {
			f.have.Foreign = append(f.have.Foreign, ForeignAddress{Address: Address{link, index, netip.MustParsePrefix(prefix)}, Origin: origin, Advertised: advertised})
		}
		add("fe80::1/64", "kernel", false)
		add("2001:db8:1::9/64", "other", false)
		add("2001:db8::7/64", "kernel", true)
		add("2001:db8::5/64", "kernel", true)
		add("2001:db8::6/64", "kernel", true)
		f.have.Advertised = append(f.have.Advertised, Route{Link: link, Index: index, To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fe80::fe"), Metric: 1024})
	}
	s := stage{former: formerMTUs{}, config: Config{Links: []LinkConfig{
		// The configuration contains two of the addresses of eth0: 2001:db8::5 with its present
		// prefix length, and 2001:db8::6 with another one.
		{Name: "eth0", Addresses: prefixes("2001:db8::5/64", "2001:db8::6/48")},
		{Name: "eth1", IPv6: LinkIPv6{AcceptRA: true}},
	}}}
	var said []string
	for _, o := range settle(t, f, s) {
		if err := f.Do(o); err != nil {
			t.Fatal(err)
		}
		if o.Verb == DelRoute || o.Verb == DelAddress || o.Verb == AddAddress {
			said = append(said, o.String())
		}
	}
	want := []string{
		"route default (IPv6) via fe80::fe on eth0 metric 1024: delete, it came by router advertisement",
		"address 2001:db8::6/64 on eth0: delete, it came by router advertisement",
		"address 2001:db8::5/64 on eth0: adopt",
		"address 2001:db8::6/48 on eth0: add",
		"address 2001:db8::7/64 on eth0: delete, it came by router advertisement",
	}
	if !slices.Equal(said, want) {
		t.Errorf("the operations are %q, want %q", said, want)
	}
	if left := settle(t, f, s); len(left) > 0 {
		t.Errorf("operations remain: %v", left)
	}
	if len(f.have.Foreign) != 7 || len(f.have.Advertised) != 1 || f.have.Advertised[0].Link != "eth1" {
		t.Errorf("the remaining addresses are %v, the remaining routes %v", f.have.Foreign, f.have.Advertised)
	}
}

// TestForeign checks how the function foreign describes an address that does not have the mark of
// this package (see doc.go), by its protocol and its flags.
func TestForeign(t *testing.T) {
	for _, test := range []struct {
		prefix     string
		protocol   uint8
		flags      uint32
		origin     string
		advertised bool
		unfit      string
	}{
		{"127.0.0.1/8", rtnl.ProtoKernelLoopback, unix.IFA_F_PERMANENT, "kernel", false, ""},
		{"fe80::1/64", rtnl.ProtoKernelLL, unix.IFA_F_PERMANENT, "kernel", false, ""},
		{"2001:db8::1/64", rtnl.ProtoKernelRA, unix.IFA_F_MANAGETEMPADDR, "kernel", true, ""},
		{"2001:db8::1/64", rtnl.ProtoKernelRA, unix.IFA_F_TENTATIVE, "kernel", true, "tentative"},
		{"2001:db8::1/64", rtnl.ProtoKernelRA, unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED, "kernel", true, "duplicate"},
		{"2001:db8::1/64", rtnl.ProtoKernelRA, unix.IFA_F_DEPRECATED, "kernel", true, "deprecated"},
		{"2001:db8::1/64", rtnl.ProtoUnspecified, unix.IFA_F_TEMPORARY, "kernel", true, "temporary"},
		{"2001:db8::1/64", rtnl.ProtoUnspecified, unix.IFA_F_PERMANENT, "other", false, ""},
		{"10.0.0.2/24", rtnl.ProtoUnspecified, unix.IFA_F_SECONDARY | unix.IFA_F_PERMANENT, "other", false, ""},
		{"10.0.0.2/24", rtnl.ProtoUnspecified, unix.IFA_F_SECONDARY, "other", false, ""},
	} {
		f := foreign("eth0", rtnl.Address{Index: 2, Prefix: netip.MustParsePrefix(test.prefix), Protocol: test.protocol, Flags: test.flags})
		if f.Link != "eth0" || f.Index != 2 || f.Origin != test.origin || f.Advertised != test.advertised || f.Unfit != test.unfit {
			t.Errorf("%+v: %+v", test, f)
		}
	}
}
