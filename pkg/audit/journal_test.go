package audit

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestJournal checks that Unfinished returns the calls that began and did not end, even if a power
// cut damaged their files.
func TestJournal(t *testing.T) {
	j := Journal{Dir: filepath.Join(t.TempDir(), "open")}
	if left, err := j.Unfinished(); err != nil || len(left) != 0 {
		t.Errorf("before the first call: %v, %v", left, err)
	}
	for i, id := range []string{"b", "a", "c"} {
		c := call("/a/" + id)
		c.ID = id
		if err := j.Begin(noon.Add(time.Duration(i)*time.Second), c); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.End("a"); err != nil {
		t.Error(err)
	}
	if err := j.End("a"); err != nil {
		t.Errorf("second End of the same call: %v", err)
	}
	if err := os.WriteFile(filepath.Join(j.Dir, "torn.json"), []byte(`{"at":`), 0o600); err != nil {
		t.Fatal(err)
	}
	left, err := Journal{Dir: j.Dir}.Unfinished()
	if err != nil || len(left) != 3 {
		t.Fatalf("%v, %v", left, err)
	}
	if left[0].ID != "torn" || left[1].Method != "/a/b" || left[1].ID != "b" || !left[1].At.Equal(noon) || left[2].ID != "c" {
		t.Errorf("%+v", left)
	}
	if err := (Journal{Dir: filepath.Join(j.Dir, "torn.json")}).Begin(noon, call("/a/B")); err == nil {
		t.Error("Begin returns no error although it cannot write the call")
	}
}

// TestNamedRecords checks that each record has its own chain, and that a line of one record is
// rejected in another.
func TestNamedRecords(t *testing.T) {
	changes := open(t, t.TempDir())
	refused, err := OpenNamed(t.TempDir(), Refused, 1000, 3)
	if err != nil {
		t.Fatal(err)
	}
	record(t, changes, "/a/B", "/a/C")
	for range 200 {
		record(t, refused, "/a/X")
	}
	if _, err := verify(all(t, changes, 0), Checkpoint{}); err != nil {
		t.Error(err)
	}
	lines := all(t, refused, 0)
	c := Chain{Record: Refused}
	for _, line := range lines {
		if _, err := c.Check(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (&Chain{}).Check(lines[0]); err == nil {
		t.Error("the chain of the record changes accepts a line of the record refused")
	}
}
