package trust

import (
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedLedger reads the ledger of a released version. It also checks the digests, by which
// machines with different versions compare their ledgers.
func TestReleasedLedger(t *testing.T) {
	l := releasedtest.Decode[Ledger](t, "book.json")
	digests := hex.EncodeToString(l.Revoked.Digest()) + " revocations\n" + hex.EncodeToString(l.Public().Digest()) + " membership\n"
	releasedtest.CompareFile(t, "digests.txt", []byte(digests))
	active, err := json.Marshal(l.Revoked.Active())
	if err != nil {
		t.Fatal(err)
	}
	releasedtest.CompareFile(t, "in-force.json", append(active, '\n'))
	if i := l.Issued[1]; i.Lineage != "1a2b" || i.TTL.Hours() != 2 {
		t.Errorf("issued: %+v", i)
	}
	if r := l.Revoked[0]; r.Lineage != "77" || r.Generation != 1 {
		t.Errorf("revoked: %+v", r)
	}
	if l.ControlPlanes["10.0.0.12"] != "m2" || l.Members[0].Generation != 5 || l.Tickets[0].Quorum != 2 || len(l.Bindings) != 1 {
		t.Errorf("membership: %+v", l)
	}
}
