package network

import (
	"testing"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
)

// TestForgottenClient checks that setStatus6 ignores a forgotten client. A forgotten client can
// renew its lease before it releases the lease, and the next client of the link must not get that
// lease.
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
