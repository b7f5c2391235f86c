package network

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
)

// TestForgottenClient checks that setStatus6 ignores a client after forgetClient6. Such a client
// can still renew its lease before it releases the lease, and the next client of the link must not
// get this lease.
func TestForgottenClient(t *testing.T) {
	c := New(Deps{})
	cl := &client6{link: Link{Index: 2}}
	c.six.clients[2] = cl
	bound := dhcp6.Status{Phase: dhcp6.Bound, Lease: &dhcp6.Lease{}}
	if c.setStatus6(cl, bound); c.six.status[2].Lease != bound.Lease {
		t.Fatalf("the status is %+v, want %+v", c.six.status[2], bound)
	}
	c.forgetClient6(2)
	c.setStatus6(cl, bound)
	if st, known := c.six.status[2]; known {
		t.Errorf("the forgotten client has set the status %+v", st)
	}
}

// TestLatch checks that latch combines the recorded flags of a link with those of its last router
// advertisement, and returns no flags for a link that is not ready. It must not change the recorded
// flags, because a dry run uses the same function.
func TestLatch(t *testing.T) {
	ready := func(l Link) Have {
		l.Index, l.Up, l.Carrier = 2, true, true
		a := Address{Link: "eth0", Index: 2, Prefix: netip.MustParsePrefix("fe80::1/64")}
		return Have{Links: []Link{l}, Foreign: []ForeignAddress{{Address: a}}}
	}
	recorded := map[int]RouterFlags{2: {Managed: true}, 3: {Other: true}}
	have := ready(Link{Router: RouterFlags{Other: true}})
	both := RouterFlags{Managed: true, Other: true}
	if got := latch(recorded, have); len(got) != 1 || got[2] != both || have.Links[0].Router != both {
		t.Errorf("got %+v and %+v, want %+v", got, have.Links[0].Router, both)
	}
	have = ready(Link{Router: RouterFlags{Other: true}})
	have.Links[0].Carrier = false
	if got := latch(recorded, have); len(got) != 0 || have.Links[0].Router != (RouterFlags{Other: true}) {
		t.Errorf("without a carrier: got %+v and %+v", got, have.Links[0].Router)
	}
	if recorded[2] != (RouterFlags{Managed: true}) || len(recorded) != 2 {
		t.Errorf("the recorded flags have changed: %+v", recorded)
	}
}
