package network

import (
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedLeases checks that this version reads the stored leases of released versions, and
// that it writes them in the same format.
func TestReleasedLeases(t *testing.T) {
	was, is := LeaseDir(releasedtest.Copy(t, ".")), LeaseDir(t.TempDir())
	for _, mac := range []string{"52:54:00:12:34:56", "52:54:00:12:34:57"} {
		l, err := was.Load(mac)
		if err != nil || l == nil {
			t.Fatalf("%s: %v, %v", mac, l, err)
		}
		if err := is.Save(mac, l); err != nil {
			t.Fatal(err)
		}
	}
	releasedtest.Compare(t, ".", string(is))
}
