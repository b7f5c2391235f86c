// Package approvals rejects a guarded call unless two operators have approved it
// (docs/decisions/0123-two-person-approval.md). Package approval decides; this package supplies the
// rule, the time and the key of the machine, and stores the used approvals on STATE.
//
// The package does not know the calls. Its callers pass the content of the call.
package approvals

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/approval"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Deps are the dependencies of a Gate.
type Deps struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// Key returns the fingerprint of the machine's key.
	Key func() string
	// Floor returns a time that has certainly passed.
	Floor func() time.Time
	File  string // the used approvals
	// Event adds an event of source "approvals".
	Event func(kind, message string)
}

// Gate checks approvals. Its methods are safe for concurrent use.
type Gate struct {
	deps Deps
	mu   sync.Mutex // held from the check until the approval is stored as used
}

// New returns a gate.
func New(d Deps) *Gate { return &Gate{deps: d} }

// Remedy is the end of each error for a call without a valid approval.
const Remedy = "`orlopctl approval request --out FILE -- COMMAND` requests an approval"

// Check returns nil if the rule does not guard the group of a call, or if the file is a valid
// approval of the call. The approval is then used: a second call with it is rejected. by has the
// names of the approvers. The error is a gRPC status.
func (g *Gate) Check(group config.ApprovalCalls, method string, content map[string]string, file []byte) (by []string, err error) {
	rule := g.deps.Config().Approvals()
	if !rule.Guards(group) {
		return nil, nil
	}
	return g.check(rule, approval.Call{Method: method, Content: content}, file)
}

// CheckChange is Check for a change of guarded fields (config.Guarded). rule is the rule before the
// change.
func (g *Gate) CheckChange(rule *config.Approvals, method string, changes map[string]string, file []byte) (by []string, err error) {
	if rule == nil || len(changes) == 0 {
		return nil, nil
	}
	return g.check(rule, approval.Call{Method: method, Content: changes, Partial: true}, file)
}

// CheckRollback is Check for a rollback that changes guarded fields. rule is the rule before the
// rollback.
func (g *Gate) CheckRollback(rule *config.Approvals, method string, content map[string]string, file []byte) (by []string, err error) {
	if rule == nil {
		return nil, nil
	}
	return g.check(rule, approval.Call{Method: method, Content: content}, file)
}

// check checks the approval of a guarded call, and stores the approval as used.
func (g *Gate) check(rule *config.Approvals, c approval.Call, file []byte) (by []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.Machine = g.deps.Key()
	now, floor := time.Now(), g.deps.Floor()
	if now.Before(floor) {
		now = floor
	}
	accepted, err := approval.RuleOf(rule).Verify(file, c, now)
	if err == nil {
		err = g.use(accepted, now, floor)
	}
	if err != nil {
		return nil, rejection(c, err)
	}
	g.deps.Event("operation", fmt.Sprintf("the call %s was approved by %s", c.Method, strings.Join(accepted.By, " and ")))
	return accepted.By, nil
}

// rejection returns the status of a rejected call.
func rejection(c approval.Call, err error) error {
	if errors.Is(err, approval.ErrMissing) && c.Partial {
		return status.Errorf(codes.FailedPrecondition, "%s: refused, nothing was changed: two operators must approve the change of %s (Machine.spec.trust.approvals); %s",
			c.Method, strings.Join(slices.Sorted(maps.Keys(c.Content)), ", "), Remedy)
	}
	if errors.Is(err, approval.ErrMissing) {
		return status.Errorf(codes.FailedPrecondition, "%s: refused, nothing was changed: two operators must approve it (Machine.spec.trust.approvals); %s", c.Method, Remedy)
	}
	return status.Errorf(codes.FailedPrecondition, "%s: refused, nothing was changed: its approval is not valid: %v; %s", c.Method, err, Remedy)
}

// use stores an approval as used. The approval is on disk before the call runs, so a power cut
// cannot make it valid again.
func (g *Gate) use(a approval.Accepted, now, floor time.Time) error {
	text, err := os.ReadFile(g.deps.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the used approvals: %w", err)
	}
	uses, err := approval.ParseUses(text)
	if err == nil {
		uses, err = uses.Add(a, now, floor)
	}
	if err != nil {
		return err
	}
	text, err = uses.Encode()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(g.deps.File), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(g.deps.File, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store it as used: %w", err)
	}
	return nil
}
