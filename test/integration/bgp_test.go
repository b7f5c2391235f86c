package integration

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/orlop-os/orlop/vm"
)

// bgpVerb starts BGP on the gateway, or waits until exactly the named machines announce an address.
func (s *story) bgpVerb(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "bgp start ASN; bgp DEADLINE ADDRESS [NAME…]"
	need(ts, neg, args, 2, -1, usage)
	if args[0] == "start" {
		asn, err := strconv.ParseUint(args[1], 10, 32)
		ts.Check(err)
		s.bgp, err = vm.StartBGP(s.network, uint32(asn))
		ts.Check(err)
		s.note("the gateway speaks BGP, AS %d", asn)
		return
	}
	if s.bgp == nil {
		ts.Fatalf("bgp: the gateway does not speak BGP; begin with: bgp start ASN")
	}
	to, err := netip.ParseAddr(args[1])
	ts.Check(err)
	var want []netip.Addr
	for _, name := range args[2:] {
		want = append(want, s.machine(ts, name).Addr())
	}
	slices.SortFunc(want, netip.Addr.Compare)
	ts.Check(until(s.lasts(deadlineOf(ts, args[0])), func() error {
		if hops := s.bgp.Hops(to); !slices.Equal(hops, want) {
			return fmt.Errorf("%s is announced by %v, want %v", to, hops, want)
		}
		return nil
	}))
	s.note("bgp: %s is announced by %v", to, args[2:])
}

// announced returns the prefixes that the machines have announced so far.
func announced(r *vm.BGPRouter) []netip.Prefix {
	if r == nil {
		return nil
	}
	return r.Seen()
}
