package audit

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedRecord reads the record of version 0.1.0 and appends the same calls to a new record,
// which must have the same content. Then it continues the old record.
func TestReleasedRecord(t *testing.T) {
	const size, files = 400, 8
	dir := releasedtest.Copy(t, ".")
	was, err := Open(dir, size, files)
	if err != nil {
		t.Fatal(err)
	}
	is, err := Open(filepath.Join(t.TempDir(), "present"), size, files)
	if err != nil {
		t.Fatal(err)
	}
	verify := func() (count int) {
		var chain Chain
		err := was.Read(0, func(_ uint64, line []byte) error {
			e, err := chain.Check(line)
			if err == nil && count < 3 {
				err = is.Append(e.At, e.Call)
			}
			count++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	if n := verify(); n != 3 {
		t.Errorf("the old record has %d lines", n)
	}
	releasedtest.Compare(t, ".", is.dir)
	if err := was.Append(time.Now(), Call{Method: "next"}); err != nil {
		t.Fatal(err)
	}
	if n := verify(); n != 4 {
		t.Errorf("the old record has %d lines", n)
	}
}
