package hosts

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/trust"
)

const (
	// refusalInterval is the time from the refusal of an approval to the next attempt: each attempt
	// starts a process that evaluates the expression of the rule.
	refusalInterval = 30 * time.Second
	// maxAttempts bounds the approvals that a pass tries: stolen controllers could list many.
	maxAttempts = 8
	// attemptsTimeout bounds the attempts of a pass, because the removals of the pass come after
	// them. An evaluation takes less than a second on real hardware.
	attemptsTimeout = 30 * time.Second
)

// RuleDeps is the environment of approvals by rules (docs/decisions/0120-approval-rules.md).
type RuleDeps struct {
	// Host returns the inventory that a machine has sent to this machine, by its key.
	Host func(key string) (inventory.Host, bool)
	// Matches evaluates an expression for an inventory.
	Matches func(ctx context.Context, expression string, h inventory.Host) (bool, error)
	// Approvals returns the approvals in the ledger.
	Approvals func() trust.Membership
	// Record stores an approval in more than half of the ledgers.
	Record func(ctx context.Context, a trust.Approval) error
}

// approvals are the decisions of this machine about approvals by rules.
type approvals struct {
	deps RuleDeps
	// stored has the IDs of the approvals that a majority stores, as far as this machine knows.
	stored  map[string]bool
	refused map[attempt]refusal
	// next is the key of the first claim that the last pass has not tried; the next pass begins
	// there.
	next string
}

// attempt is the approval of a key by a rule.
type attempt struct{ rule, key string }

type refusal struct {
	at  time.Time
	err error
}

// rule is a verified rule with its ID.
type rule struct {
	claim.Rule
	id string
}

// verifyAll returns the valid documents of a list by their names, and the problems of the others.
func verifyAll[D, V any](kind string, all map[string]D, verify func(D) (V, *x509.Certificate, error), checkRevoked func(*x509.Certificate) error) (map[string]signed[V], []error) {
	valid, problems := map[string]signed[V]{}, []error(nil)
	for name, document := range all {
		v, by, err := verify(document)
		if err == nil {
			err = checkRevoked(by)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %.253s: %w", kind, name, err))
			continue
		}
		valid[name] = signed[V]{v, by.Subject.String()}
	}
	return valid, problems
}

// signed is a verified document with the subject of the certificate that signed it.
type signed[V any] struct {
	document V
	by       string
}

// approve returns nil if the rule r has approved the machine with the key. Otherwise the error is
// the reason. first is true if this call has approved the machine; the approval is then stored, and
// identity is the identity that the rule lists. tries is the number of attempts that are left in
// this pass.
func (s *approvals) approve(ctx context.Context, key string, r rule, now time.Time, tries *int) (first bool, identity claim.Identity, err error) {
	known := s.deps.Approvals()
	a, found := recorded(known, key, r)
	if found && s.stored[a.ID()] {
		// In the meantime, a rule that was signed later can have approved another machine.
		return false, claim.Identity{}, known.CheckApproval(a)
	}
	this := attempt{r.id, key}
	if old, before := s.refused[this]; before && now.Sub(old.at) < refusalInterval {
		return false, claim.Identity{}, old.err
	}
	if *tries == 0 {
		return false, claim.Identity{}, errLater
	}
	*tries--
	if !found {
		a, err = s.newApproval(ctx, key, r, now)
	}
	if err == nil {
		err = s.deps.Record(ctx, a)
	}
	if err != nil {
		s.refused[this] = refusal{now, err}
		return false, claim.Identity{}, err
	}
	s.stored[a.ID()] = true
	return !found, claim.Identity{Serial: a.Serial, UUID: a.UUID}, nil
}

// errLater is the reason of a pass that has tried enough approvals.
var errLater = errors.New("waits for other approvals")

// recorded returns the approval of a key by a rule in a ledger.
func recorded(known trust.Membership, key string, r rule) (trust.Approval, bool) {
	for _, a := range known.Approvals {
		if a.Key == key && a.Rule == r.id {
			return a, true
		}
	}
	return trust.Approval{}, false
}

// newApproval returns the first approval of a machine. The machine must state an identity that the
// rule lists, and match the expression of the rule.
func (s *approvals) newApproval(ctx context.Context, key string, r rule, now time.Time) (trust.Approval, error) {
	h, found := s.deps.Host(key)
	if !found && slices.ContainsFunc(s.deps.Approvals().Approvals, func(a trust.Approval) bool { return a.Key == key }) {
		return trust.Approval{}, errors.New("another text of the rule, or another rule, has approved it, and it sends no inventory any more; approve its join request (`orlopctl nodes approve`)")
	}
	if !found {
		return trust.Approval{}, errors.New("it sends no inventory to this control-plane machine; does the name orlop-inventory have its address?")
	}
	identity, listed := r.Find(h.Serial, h.UUID)
	if !listed {
		return trust.Approval{}, fmt.Errorf("the rule lists neither its serial number %q nor its UUID %q", h.Serial, h.UUID)
	}
	a := trust.Approval{Serial: identity.Serial, UUID: identity.UUID, Key: key, Rule: r.id, Maximum: r.Maximum, Signed: r.Signed, At: now.UTC()}
	if err := s.deps.Approvals().CheckApproval(a); err != nil {
		return a, err // checked before the costly expression
	}
	if r.Match == "" {
		return a, nil
	}
	yes, err := s.deps.Matches(ctx, r.Match, h)
	if err == nil && !yes {
		err = errors.New("its inventory does not match the expression of the rule")
	}
	return a, err
}

// inTurn returns the claims, beginning with the first claim that the last pass has not tried.
// Otherwise, claims that are rejected in each pass would use up all attempts.
func (s *approvals) inTurn(all []claim.Claim) []claim.Claim {
	i := slices.IndexFunc(all, func(c claim.Claim) bool { return c.Key == s.next })
	s.next = ""
	if i < 0 {
		return all
	}
	return slices.Concat(all[i:], all[:i])
}

// forget drops refusals after refusalInterval.
func (s *approvals) forget(now time.Time) {
	for this, r := range s.refused {
		if now.Sub(r.at) >= refusalInterval {
			delete(s.refused, this)
		}
	}
}
