package approval

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// maxUses is the maximum number of used approvals that a machine stores. Each of them has the
// signatures of two approvers, so no caller alone can fill the list.
const maxUses = 1024

// Use is the record of a used approval.
type Use struct {
	Nonce   string    `json:"nonce"`
	Expires time.Time `json:"expires"`
	At      time.Time `json:"at"`
	Call    string    `json:"call"`
	By      []string  `json:"by"`
}

// Uses are the used approvals of a machine, oldest first.
type Uses []Use

// ParseUses parses the stored list. It fails for a damaged list, because a machine without the list
// would accept an approval twice.
func ParseUses(text []byte) (Uses, error) {
	var u Uses
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &u); err != nil {
		return nil, fmt.Errorf("used approvals: cannot decode: %w", err)
	}
	return u, nil
}

// Add returns the list with an approval. floor is a time that has certainly passed. Add drops the
// approvals that expired before the floor: the clock can be wrong or be set back, but never before
// the floor. It fails if the approval is in the list, or if the list is full.
func (u Uses) Add(a Accepted, now, floor time.Time) (Uses, error) {
	if slices.ContainsFunc(u, func(o Use) bool { return o.Nonce == a.Nonce }) {
		return u, errors.New("it was already used on this machine; each approval is valid for one call on each machine")
	}
	kept := slices.DeleteFunc(slices.Clone(u), func(o Use) bool { return !floor.Before(o.Expires) })
	if len(kept) >= maxUses {
		return u, fmt.Errorf("this machine stores %d used approvals already; wait until some of them have expired", maxUses)
	}
	return append(kept, Use{Nonce: a.Nonce, Expires: a.Expires, At: now.UTC().Truncate(time.Second), Call: a.Call, By: a.By}), nil
}

// Encode returns the list as JSON.
func (u Uses) Encode() ([]byte, error) {
	text, err := json.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("used approvals: cannot encode: %w", err)
	}
	return text, nil
}
