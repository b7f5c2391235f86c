package configstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedStore reads the store of version 0.1.0 and repeats its changes in a new store. Both
// stores must have the same files, and the same result of the next boot.
func TestReleasedStore(t *testing.T) {
	was, is := Store{Dir: releasedtest.Copy(t, ".")}, Store{Dir: filepath.Join(t.TempDir(), "present")}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	numbers, err := was.Revisions()
	do(err)
	for _, n := range numbers {
		e, err := was.Entry(n)
		do(err)
		do(is.Put([]byte(e.Documents)))
		do(is.Add([]byte(e.Documents), e.By, e.At, func(string) []string { return e.Changes }))
	}
	do(is.StartTrial([]byte("third\n")))
	current, err := os.ReadFile(was.Current())
	do(err)
	do(is.StartTrial(current))
	staged, err := read(was.staged())
	do(err)
	do(is.Stage(staged))
	releasedtest.Compare(t, ".", is.Dir)
	for _, s := range []Store{was, is} {
		changed, err := s.Boot(false)
		if now, _ := read(s.current()); err != nil || changed != (Changed{Returned: true}) || string(now) != "second\n" {
			t.Errorf("%+v, %v: %q", changed, err, now)
		}
	}
}
