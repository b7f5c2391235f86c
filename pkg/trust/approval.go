package trust

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

const (
	// maxApprovals is the number of approvals in a ledger at which AddApproval adds no more. A
	// merge accepts up to twice as many, because several machines can add approvals at the same
	// time.
	maxApprovals = 1000
	// keepApproval is how long an approval stays in the ledger. A rule is valid for a year at most
	// (package claim), so every rule that was signed before the approval has expired when the
	// approval is deleted. Therefore no such rule can approve a second machine with the same serial
	// number afterwards.
	keepApproval = 366*24*time.Hour + keepExpired
	// maxIdentity is the maximum length of a serial number or UUID, in bytes.
	maxIdentity = 64
)

// Approval records that a rule of an operator has approved a waiting machine by its serial number
// or UUID, as the machine reports them (docs/decisions/0120-approval-rules.md). An approval never
// changes.
//
// An approval has an effect after more than half of the control-plane machines have accepted it by
// AddApproval. AddApproval rejects an approval that contradicts another one in the ledger
// (excludes). Two majorities have a machine in common, so two keys with the same serial number are
// never both approved, except by a rule that an operator signs after the first approval.
//
// MergeMembership also adds contradictory approvals to a ledger, because all ledgers must become
// equal. A machine that gets an approval by a merge has not accepted it.
type Approval struct {
	Serial string `json:"serial,omitempty"` // as the rule lists it
	UUID   string `json:"uuid,omitempty"`   // as the rule lists it
	Key    string `json:"key"`              // fingerprint of the machine's key
	// Rule is the ID of the rule: 64 hexadecimal digits. Maximum is how many machines the rule may
	// approve, and Signed is the time of its signature.
	Rule    string    `json:"rule"`
	Maximum int       `json:"maximum"`
	Signed  time.Time `json:"signed"`
	At      time.Time `json:"at"` // not before Signed
}

// ID returns a hash of the rule, the key, the serial number and the UUID, in hexadecimal. Two
// approvals of a machine by the same rule have the same ID even if their times differ.
func (a Approval) ID() string {
	sum := sha256.Sum256([]byte(a.Rule + "\n" + a.Key + "\n" + a.Serial + "\n" + a.UUID))
	return hex.EncodeToString(sum[:])
}

var ruleID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// check returns an error if the approval is invalid. No ledger contains an invalid approval.
func (a Approval) check() error {
	switch {
	case !ruleID.MatchString(a.Rule):
		return fmt.Errorf("approval: rule %.80q", a.Rule)
	case a.Serial == "" && a.UUID == "" || len(a.Serial) > maxIdentity || len(a.UUID) > maxIdentity:
		return fmt.Errorf("approval: serial number %.80q, UUID %.80q", a.Serial, a.UUID)
	case a.Maximum < 1 || a.Maximum > maxApprovals:
		return fmt.Errorf("approval: maximum %d", a.Maximum)
	case a.At.Before(a.Signed):
		return errors.New("approval: it is older than its rule")
	}
	return errors.Join(checkKey(a.Key), checkTimes(a.Signed, a.At))
}

// excludes reports whether the approval a prevents the later approval next. It does if both have
// the same serial number or UUID but different keys, and the rule of next was signed at or before
// the time of the approval a. If that rule was signed later, it is a new decision of an operator,
// so a does not prevent its approvals.
func (a Approval) excludes(next Approval) bool {
	same := a.Serial != "" && a.Serial == next.Serial || a.UUID != "" && a.UUID == next.UUID
	return same && a.Key != next.Key && !a.At.Before(next.Signed)
}

// CheckApproval returns the reason why a ledger with this membership cannot add an approval, or nil
// if it can. An approval that the membership already contains passes.
func (ms Membership) CheckApproval(next Approval) error {
	if err := next.check(); err != nil {
		return err
	}
	used, known := 0, false
	for _, a := range ms.Approvals {
		switch {
		case a.excludes(next):
			return fmt.Errorf("another machine, with the key %s, is approved with this serial number or UUID; if the machine at hand is the right one, approve its fingerprint, or sign the rule again", a.Key)
		case a.ID() == next.ID():
			known = true
		case a.Rule == next.Rule:
			used++
		}
	}
	switch {
	case known:
		return nil
	case used >= next.Maximum:
		return fmt.Errorf("the rule has approved its maximum of %d machines; sign a rule with a larger maximum", next.Maximum)
	case len(ms.Approvals) >= maxApprovals:
		return fmt.Errorf("there are %d approvals by rules already, which stay for a year; approve the fingerprint", len(ms.Approvals))
	}
	return nil
}

// AddApproval returns the ledger with an additional approval. If the ledger already contains an
// approval with the same ID, AddApproval returns the ledger unchanged. It fails with the reason
// that CheckApproval returns.
func (l Ledger) AddApproval(a Approval) (Ledger, error) {
	if err := l.CheckApproval(a); err != nil {
		return l, fmt.Errorf("approval by rule refused: %w", err)
	}
	if l.HasApproval(a.ID()) {
		return l, nil
	}
	l.Membership = l.Membership.Merge(Membership{Approvals: []Approval{a}})
	return l, nil
}

// HasApproval reports whether the membership contains the approval with this ID (Approval.ID).
func (ms Membership) HasApproval(id string) bool {
	return slices.ContainsFunc(ms.Approvals, func(a Approval) bool { return a.ID() == id })
}

// laterApproval compares two versions of an approval for union. The version with the earlier time
// is greater, because it excludes the approvals of fewer rules (excludes).
func laterApproval(x, y Approval) int {
	return cmp.Or(y.At.Compare(x.At), cmp.Compare(x.Maximum, y.Maximum), x.Signed.Compare(y.Signed))
}

// oldApproval reports whether an approval is older than keepApproval.
func oldApproval(a Approval, now time.Time) bool { return now.Sub(a.At) > keepApproval }
