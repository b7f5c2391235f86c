package credentials

import (
	"errors"
	"testing"
	"time"
)

// TestReport checks that an unreadable file has no expiry, and that an unreadable list is a
// problem.
func TestReport(t *testing.T) {
	at := time.Unix(1790000000, 0)
	got := Report([]State{{File: "a.crt", Expires: at, Renews: at.Add(-time.Hour)}, {File: "ca.crt", Expires: at}, {File: "b.crt", Problem: "damaged"}}, nil)
	if len(got) != 3 {
		t.Fatal(got)
	}
	if a := got[0]; a.File != "a.crt" || !a.Expires.AsTime().Equal(at) || !a.Renews.AsTime().Equal(at.Add(-time.Hour)) || a.Problem != "" {
		t.Errorf("%+v", a)
	}
	if ca := got[1]; !ca.Expires.AsTime().Equal(at) || ca.Renews != nil {
		t.Errorf("a CA is renewed: %+v", ca)
	}
	if b := got[2]; b.Expires != nil || b.Problem != "damaged" {
		t.Errorf("%+v", b)
	}
	if got := Report(nil, errors.New("no directory")); len(got) != 1 || got[0].Problem != "no directory" {
		t.Errorf("%+v", got)
	}
}
