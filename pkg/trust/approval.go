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
	// maxApprovals bounds the approvals that a machine adds. A received membership may have twice
	// as many, because several machines add approvals at the same time.
	maxApprovals = 1000
	// keepApproval is the time for which an approval stays in the ledger. Each rule that was signed
	// before the approval has expired by then (package claim: a year), so none can approve a second
	// machine with the serial number.
	keepApproval = 366*24*time.Hour + keepExpired
	// maxIdentity is the maximum length of a serial number or UUID.
	maxIdentity = 64
)

// Approval is the record that a rule of an operator has approved a machine by the serial number or
// the UUID that the machine states (docs/decisions/0120-approval-rules.md). It never changes.
//
// More than half of the control-plane machines store an approval before it has an effect, and none
// of them stores an approval that contradicts one in its ledger. So two keys never get an effective
// approval with a serial number by rules from before the first of these approvals.
type Approval struct {
	Serial string `json:"serial,omitempty"` // as the rule lists it
	UUID   string `json:"uuid,omitempty"`   // as the rule lists it
	Key    string `json:"key"`              // fingerprint of the machine's key
	// Rule identifies the rule: 64 hexadecimal digits. Maximum is the maximum number of its
	// approvals, and Signed the time of its signature.
	Rule    string    `json:"rule"`
	Maximum int       `json:"maximum"`
	Signed  time.Time `json:"signed"`
	At      time.Time `json:"at"` // not before Signed
}

// ID identifies the approval of a machine by a rule: the time does not matter.
func (a Approval) ID() string {
	sum := sha256.Sum256([]byte(a.Rule + "\n" + a.Key + "\n" + a.Serial + "\n" + a.UUID))
	return hex.EncodeToString(sum[:])
}

var ruleID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// check returns an error if a ledger cannot contain the approval.
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

// excludes reports whether an approval prevents the approval of another key: it has the same serial
// number or UUID, and the rule of the other approval was signed before. A rule that was signed
// afterwards is a new decision of an operator.
func (a Approval) excludes(next Approval) bool {
	same := a.Serial != "" && a.Serial == next.Serial || a.UUID != "" && a.UUID == next.UUID
	return same && a.Key != next.Key && !a.At.Before(next.Signed)
}

// CheckApproval returns the reason why an approval cannot be added; nil if it can.
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

// AddApproval returns the ledger with an additional approval, or the reason why it cannot have it.
// An approval that it has already stays as it is.
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

// HasApproval reports whether the ledger has the approval with an ID.
func (ms Membership) HasApproval(id string) bool {
	return slices.ContainsFunc(ms.Approvals, func(a Approval) bool { return a.ID() == id })
}

// laterApproval compares two versions of an approval: the earlier one counts, which excludes fewer
// rules.
func laterApproval(x, y Approval) int {
	return cmp.Or(y.At.Compare(x.At), cmp.Compare(x.Maximum, y.Maximum), x.Signed.Compare(y.Signed))
}

func oldApproval(a Approval, now time.Time) bool { return now.Sub(a.At) > keepApproval }
