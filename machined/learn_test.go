package main

import (
	"fmt"
	"testing"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestNoteRemoved: a worker that was removed sees it in both forms in which it is refused, and in nothing else.
func TestNoteRemoved(t *testing.T) {
	for what, c := range map[string]struct {
		refused error
		removed bool
	}{
		"a call":       {fmt.Errorf("machine 10.0.0.11: %s at 2026-05-04T03:02:01Z", trust.WasRevoked), true},
		"a connection": {fmt.Errorf("machine 10.0.0.11: cannot connect: %w: %w", client.ErrRefused, client.ErrRevoked), true},
		"no answer":    {fmt.Errorf("machine 10.0.0.11: cannot connect: %w", client.ErrUnreachable), false},
		"nothing":      {nil, false},
	} {
		m := &machine{membership: cell.New(membershipState{})}
		m.noteRemoved(c.refused)
		if s, _ := m.membership.Get(); s.Removed != c.removed {
			t.Errorf("%s: removed %v, want %v", what, s.Removed, c.removed)
		}
	}
}
