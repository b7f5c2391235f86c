package trust

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzMerge merges arbitrary revocations of a peer. A second merge of the same entries adds
// nothing. The ledger stays within its limit, and is the same after it was encoded as JSON and
// decoded again.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`[{"origin":"1a","by":"CN=admin"},{"name":"dora","count":2,"restored":true}]`), []byte(`[{"name":"dora","count":1}]`))
	f.Add([]byte(`[{"origin":"any ticket"}]`), []byte(`null`))
	f.Add([]byte(`[{"origin":"1a","name":"dora"}]`), []byte(`[{}]`))
	f.Add([]byte(`[{"name":"dora","at":"2026-05-01T12:00:00Z"}]`), []byte(`[{"name":"emil","at":"9999-12-31T23:59:59-23:00"},{"origin":"1a"}]`))
	f.Fuzz(func(t *testing.T, before, sent []byte) {
		var known Ledger
		var received []Revocation
		if json.Unmarshal(before, &known.Revoked) != nil || json.Unmarshal(sent, &received) != nil {
			return
		}
		known, _, _ = Ledger{}.MergeRevocations(known.Revoked, noon) // retain the valid entries
		next, news, err := known.MergeRevocations(received, noon)
		if len(next.Revoked) > maxRevoked || len(next.Revoked) < len(known.Revoked) || err == nil && len(news) == 0 && len(next.Revoked) != len(known.Revoked) {
			t.Fatalf("%d revocations became %d", len(known.Revoked), len(next.Revoked))
		}
		if _, again, twice := next.MergeRevocations(received, noon); (twice == nil) != (err == nil) || len(again) > 0 {
			t.Fatalf("the second merge: %v, %v", again, twice)
		}
		text, wrong := json.Marshal(next)
		var read Ledger
		if wrong == nil {
			wrong = json.Unmarshal(text, &read)
		}
		if wrong != nil || !bytes.Equal(read.Revoked.Digest(), next.Revoked.Digest()) {
			t.Fatalf("the ledger is not the same after it was encoded and decoded: %v, %s", wrong, text)
		}
		for _, r := range next.Revoked {
			if r.Lineage == AnyTicket {
				t.Fatal("a peer can revoke all tickets")
			}
		}
	})
}
