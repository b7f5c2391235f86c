package trust

import (
	"fmt"
	"testing"
	"time"
)

// TestClockThatJumped uses a clock that is five years ahead. The ledger retains the entries that
// may still be valid at the time Floor, which has certainly passed. Without Floor, it drops them.
func TestClockThatJumped(t *testing.T) {
	ahead := noon.Add(5 * 365 * 24 * time.Hour)
	ledger := Ledger{ID: fmt.Sprintf("%032x", 1)}
	ledger, err := ledger.AddTicket(Ticket{Serial: "1a", Name: "w1", At: noon, Expires: noon.Add(time.Hour), By: "admin", Voters: []string{ledger.ID}, Quorum: 1})
	if err != nil {
		t.Fatal(err)
	}
	ledger = ledger.AddIssued(Issued{Serial: "2b", Lineage: "2b", At: noon, Expires: noon.Add(time.Hour)})
	full := Ledger{Revoked: make([]Revocation, maxRevoked)}
	for i := range full.Revoked {
		full.Revoked[i] = Revocation{Lineage: fmt.Sprintf("%x", i+1), Machine: fmt.Sprint("w", i), At: noon, Generation: 1}
	}
	for _, c := range []struct {
		name  string
		past  time.Time // Floor of the ledgers
		drops bool      // the entries of noon are dropped
	}{
		{"no floor", time.Time{}, true},
		{"a floor one day after noon", noon.Add(24 * time.Hour), false},
		{"a floor equal to the clock", ahead, true},
		{"a floor after the time of the clock", ahead.Add(time.Hour), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ledger, full := ledger, full
			ledger.Floor, full.Floor = c.past, c.past
			var s Session
			pruned, some := ledger.Prune(&s, ahead)
			if some != c.drops || (len(pruned.Tickets) == 0) != c.drops {
				t.Errorf("Prune: %v, %d tickets", some, len(pruned.Tickets))
			}
			if taken, _, err := (Ledger{ID: ledger.ID, Floor: c.past}).MergeMembership(ledger.Membership, &s, ahead); err != nil || (len(taken.Tickets) == 0) != c.drops {
				t.Errorf("MergeMembership: %d tickets, %v", len(taken.Tickets), err)
			}
			if more := ledger.AddIssued(Issued{Serial: "3c", Lineage: "3c", At: ahead, Expires: ahead.Add(time.Hour)}); (len(more.Issued) == 1) != c.drops {
				t.Errorf("AddIssued: the ledger has %d certificates", len(more.Issued))
			}
			if _, _, err := full.Revoke(Revocation{Lineage: "fffff", At: ahead}); (err == nil) != c.drops {
				t.Errorf("Revoke: %v", err)
			}
			if _, _, err := full.MergeRevocations([]Revocation{{Lineage: "fffff", At: ahead}}, ahead); (err == nil) != c.drops {
				t.Errorf("MergeRevocations: %v", err)
			}
		})
	}
}
