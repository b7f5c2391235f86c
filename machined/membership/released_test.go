package membership

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedCertificates reads the certificates of a worker that a released version has stored.
// It checks that this version stores them in the same form.
func TestReleasedCertificates(t *testing.T) {
	dir := releasedtest.Copy(t, ".")
	key, err := pki.ParseKey(releasedtest.Read(t, "machine.key"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := readCertificates(filepath.Join(dir, "membership.json"), key)
	if err != nil || c.Machine == nil || len(c.Node) != 2 || len(c.addresses) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := c.store(filepath.Join(dir, "membership.json")); err != nil {
		t.Fatal(err)
	}
	releasedtest.Compare(t, ".", dir)
}

// TestReleasedLedger reads the ledger of version 0.1.0 and stores it again. The content of the file
// must not change.
func TestReleasedLedger(t *testing.T) {
	released := filepath.Join("..", "..", "pkg", "trust", releasedtest.Dir, "book.json")
	text, err := os.ReadFile(released)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger(&Deps{Files: Files{Ledger: released}})
	content, damaged := l.readable()
	if damaged != nil || len(content.Revoked) != 3 {
		t.Fatalf("%+v, %v", content, damaged)
	}
	next := newLedger(&Deps{Files: Files{Ledger: filepath.Join(t.TempDir(), "trust", "book.json")}})
	if err := next.storeLocked(content); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(next.deps.Files.Ledger); err != nil || string(again) != string(text) {
		t.Errorf("%v: the present version wrote\n%s\nthe released one\n%s", err, again, text)
	}
}
