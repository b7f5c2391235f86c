package trust

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestHighestGeneration merges entries of another machine with the highest generation. A later
// revocation must still take effect on all machines, and Restore must reject a restoration that
// could not take effect. The later renewal of a member must also survive a sync.
func TestHighestGeneration(t *testing.T) {
	sent := []Revocation{{Name: "dora", At: noon, Generation: math.MaxUint64, Restored: true}}
	here, _, err := Ledger{}.MergeRevocations(sent, noon)
	if err != nil {
		t.Fatal(err)
	}
	here, done, err := here.Revoke(Revocation{Name: "dora", At: noon})
	if err != nil || done.Generation != math.MaxUint64 {
		t.Fatalf("%+v, %v", done, err)
	}
	here, _, err = here.MergeRevocations(sent, noon)
	if err != nil || len(here.Revoked.Active()) != 1 {
		t.Errorf("the sync has undone the revocation: %+v, %v", here.Revoked, err)
	}
	there, _, _ := Ledger{}.MergeRevocations(sent, noon)
	there, news, err := there.MergeRevocations(here.Revoked, noon)
	if err != nil || len(news) != 1 || len(there.Revoked.Active()) != 1 {
		t.Errorf("the other machine does not accept the revocation: %+v, %v", there.Revoked, err)
	}
	if next, err := here.Restore(Revocation{Name: "dora", At: noon}); err == nil || !strings.Contains(err.Error(), "cannot restore: its revocation has the highest generation") || len(next.Revoked.Active()) != 1 {
		t.Errorf("Restore: %+v, %v", next.Revoked, err)
	}

	member := Member{Name: "w", Ticket: "1a", Key: finger(1), Address: "10.0.0.1", Joined: noon, Renewed: noon, Expires: noon.Add(time.Hour), Generation: math.MaxUint64}
	l := Ledger{}.WithID(id(1))
	l.Members = []Member{member}
	renewed := member
	renewed.Generation, renewed.Renewed, renewed.Expires = 0, noon.Add(time.Minute), noon.Add(2*time.Hour)
	l, err = l.Admit(renewed, true, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, _, err = l.MergeMembership(Membership{Members: []Member{member}}, &Session{}, noon)
	if err != nil || !l.Members[0].Expires.Equal(renewed.Expires) {
		t.Errorf("the sync has undone the renewal: %+v, %v", l.Members, err)
	}
}
