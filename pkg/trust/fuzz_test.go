package trust

import (
	"encoding/json"
	"testing"
)

// FuzzMerge has a machine learn what another one sends: whatever that is, it is taken whole or refused, learnt once, and never more than
// the book holds.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`[{"origin":"1a","by":"CN=admin"},{"name":"dora","count":2,"restored":true}]`), []byte(`[{"name":"dora","count":1}]`))
	f.Add([]byte(`[{"origin":"any ticket"}]`), []byte(`null`))
	f.Add([]byte(`[{"origin":"1a","name":"dora"}]`), []byte(`[{}]`))
	f.Fuzz(func(t *testing.T, before, sent []byte) {
		var known Book
		var learnt []Revocation
		if json.Unmarshal(before, &known.Revoked) != nil || json.Unmarshal(sent, &learnt) != nil {
			return
		}
		known, _, err := Book{}.Merge(known.Revoked, noon) // what a book can hold
		if err != nil {
			return
		}
		next, news, err := known.Merge(learnt, noon)
		if len(next.Revoked) > maxRevoked || len(next.Revoked) < len(known.Revoked) || err == nil && len(news) == 0 && len(next.Revoked) != len(known.Revoked) {
			t.Fatalf("%d revocations became %d", len(known.Revoked), len(next.Revoked))
		}
		if err != nil {
			return
		}
		if _, again, err := next.Merge(learnt, noon); err != nil || len(again) > 0 {
			t.Fatalf("learnt twice: %v, %v", again, err)
		}
		for _, r := range next.Revoked {
			if r.Origin == AnyTicket {
				t.Fatal("another machine can revoke all")
			}
		}
	})
}
