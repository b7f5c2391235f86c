package orlop

import (
	"fmt"
	"slices"
	"testing"
)

// attackers are the positions that the threat model must cover, in the order of docs/threats.md.
var attackers = []string{
	"Physical access", "Stolen disk", "Stolen machine", "Cloned virtual machine",
	"Hostile neighbor", "Hostile DHCP server", "Hostile DNS server", "Hostile time server",
	"Pod without privileges", "Pod with privileges", "Hostile image", "Hostile registry or mirror",
	"Cluster-admin", "Stolen worker", "Stolen control-plane machine",
	"Operator with role reader", "Stolen operator certificate",
	"Stolen release key", "BMC credentials", "Compromised Go module", "Compromised Debian package", "Exploited service process",
}

// TestThreatsTable checks the two tables of docs/threats.md. Both have the attackers in the same
// order. The first table has a row with position, gain and advice for each attacker. The second
// table has at least one row with a defense for each attacker. Each defense names a limit, or a
// test or story that exists.
func TestThreatsTable(t *testing.T) {
	const page = "docs/threats.md"
	var gains, defenses []string
	for _, cells := range tableOf(t, page, "| attacker | position and means | gains today | a site can |") {
		gains = append(gains, cells[0])
		if slices.Contains(cells, "") {
			t.Errorf("%s: %s: a cell is empty", page, cells[0])
		}
	}
	tests := namedTests(t)
	for _, cells := range tableOf(t, page, "| attacker | cannot | mechanism | shown by |") {
		defenses = append(defenses, cells[0])
		checkProof(t, fmt.Sprintf("%s: %s: %s", page, cells[0], cells[1]), cells[3], tests)
	}
	if !slices.Equal(gains, attackers) {
		t.Errorf("%s has the attackers %q; want %q", page, gains, attackers)
	}
	if got := slices.Compact(defenses); !slices.Equal(got, attackers) {
		t.Errorf("%s has defenses against %q; want %q", page, got, attackers)
	}
}
