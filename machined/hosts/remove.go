package hosts

import (
	"context"

	"github.com/orlop-os/orlop/pkg/admission/claim"
)

// ClaimAuthor is the author of removals by claims in events and in the ledger.
const ClaimAuthor = "claims of machines"

// Remover removes claimed machines from the cluster (ClaimsDeps.Remove).
type Remover struct {
	// HasMember reports whether a machine of this name has joined.
	HasMember func(name string) bool
	// Drain evicts the pods of a node. undo makes the node schedulable again.
	Drain func(ctx context.Context, node, by string) (undo func(), err error)
	// RemoveMember removes a machine, or its tickets.
	RemoveMember func(ctx context.Context, name, by string) error
}

// Remove drains the node of a machine and removes the machine from the cluster. If the removal
// fails, the drain is undone.
func (r Remover) Remove(ctx context.Context, of claim.Member) error {
	undo := func() {}
	if r.HasMember(of.Name) {
		var err error
		if undo, err = r.Drain(ctx, of.Name, ClaimAuthor); err != nil {
			return err
		}
	}
	if err := r.RemoveMember(ctx, of.Name, ClaimAuthor); err != nil {
		undo()
		return err
	}
	return nil
}
