package hosts

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/admission/claim"
)

// TestRemover checks that a machine that has joined is drained before its removal, and that the
// drain is undone if the removal fails. A machine that only has a ticket is removed without a
// drain.
func TestRemover(t *testing.T) {
	for _, c := range []struct {
		name         string
		joined       bool
		drain, fails error
		want         string
	}{
		{"joined", true, nil, nil, "drain w1 by claims of machines; remove w1 by claims of machines"},
		{"not joined, only a ticket", false, nil, nil, "remove w1 by claims of machines"},
		{"the drain fails", true, errors.New("no quorum"), nil, "drain w1 by claims of machines"},
		{"the removal fails", true, nil, errors.New("no quorum"), "drain w1 by claims of machines; remove w1 by claims of machines; undo"},
		{"the removal of a ticket fails", false, nil, errors.New("no quorum"), "remove w1 by claims of machines"},
	} {
		var did []string
		err := Remover{
			HasMember: func(name string) bool { return c.joined && name == "w1" },
			Drain: func(_ context.Context, node, by string) (func(), error) {
				did = append(did, "drain "+node+" by "+by)
				return func() { did = append(did, "undo") }, c.drain
			},
			RemoveMember: func(_ context.Context, name, by string) error {
				did = append(did, "remove "+name+" by "+by)
				return c.fails
			},
		}.Remove(t.Context(), claim.Member{Name: "w1"})
		if got := strings.Join(did, "; "); got != c.want || (err != nil) != (c.drain != nil || c.fails != nil) {
			t.Errorf("%s: %s, %v", c.name, got, err)
		}
	}
}
