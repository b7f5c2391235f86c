package hosts

import (
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestLedger checks the keys of members, the names that are in use, and which machines are known: a
// member, or a machine with an unexpired ticket.
func TestLedger(t *testing.T) {
	now := time.Now()
	in := trust.Membership{
		Members: []trust.Member{{Name: "w1", Key: "a"}, {Name: "w2", Key: "b"}},
		Tickets: []trust.Ticket{{Name: "w3", Expires: now.Add(time.Minute)}, {Name: "w4", Expires: now}},
	}
	if got := MemberKeys(in); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("keys %q", got)
	}
	if got := Names(in, now); !slices.Equal(got, []string{"w1", "w2", "w3"}) {
		t.Errorf("names %q", got)
	}
	for m, want := range map[claim.Member]bool{
		{Name: "w1", Key: "a"}: true,
		{Name: "w1", Key: "c"}: false, // another machine has the name
		{Name: "w3", Key: "c"}: true,  // the ticket w3 has not expired
		{Name: "w4", Key: "c"}: false, // the ticket w4 has expired
		{Name: "w5", Key: "a"}: false,
	} {
		if Known(in, m, now) != want {
			t.Errorf("%+v: known %t", m, !want)
		}
	}
}
