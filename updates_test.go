package orlop

import (
	"fmt"
	"slices"
	"testing"
)

// attacks are the classes of attacks in the specification of The Update Framework (section 1.5.2).
var attacks = []string{
	"Arbitrary software installation", "Rollback", "Fast-forward", "Indefinite freeze", "Endless data", "Extraneous dependencies",
	"Mix-and-match", "Wrong software installation", "Malicious mirrors preventing updates", "Vulnerability to key compromises", "Slow retrieval",
}

// TestUpdatesTable checks the table of attacks in docs/updates.md. The table has each class of the
// specification once. Each cell names a limit, or a test that exists.
func TestUpdatesTable(t *testing.T) {
	const page = "docs/updates.md"
	tests := namedTests(t)
	var got []string
	for _, cells := range tableOf(t, page, "| attack | defense | bundle | extension | add-on |") {
		got = append(got, cells[0])
		for i, cell := range cells[2:] {
			checkProof(t, fmt.Sprintf("%s: %s: cell %d", page, cells[0], i+1), cell, tests)
		}
	}
	if !slices.Equal(got, attacks) {
		t.Errorf("%s has the attacks %q, the specification has %q", page, got, attacks)
	}
}
