package credentials

import (
	"errors"
	"testing"
	"time"
)

// TestReport checks that the report of an unreadable file has a problem and no expiry. If the files
// could not be listed, the report has only this problem.
func TestReport(t *testing.T) {
	at := time.Unix(1790000000, 0)
	got := Report([]State{{File: "a.crt", Expires: at, Renews: at.Add(-time.Hour)}, {File: "ca.crt", Expires: at}, {File: "b.crt", Problem: "damaged"}}, nil)
	if len(got) != 3 {
		t.Fatal(got)
	}
	if a := got[0]; a.File != "a.crt" || !a.Expires.AsTime().Equal(at) || !a.Renews.AsTime().Equal(at.Add(-time.Hour)) || a.Problem != "" {
		t.Errorf("the report of a.crt is %+v", a)
	}
	if ca := got[1]; !ca.Expires.AsTime().Equal(at) || ca.Renews != nil {
		t.Errorf("the report of a CA has a time of renewal: %+v", ca)
	}
	if b := got[2]; b.Expires != nil || b.Problem != "damaged" {
		t.Errorf("the report of the unreadable file is %+v", b)
	}
	if got := Report(nil, errors.New("no directory")); len(got) != 1 || got[0].Problem != "no directory" {
		t.Errorf("the report after an error is %+v", got)
	}
}
