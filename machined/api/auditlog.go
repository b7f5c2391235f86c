package api

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// The audit log (package audit) has two records: changes, for calls that changed or revealed data,
// and refused, for rejected calls and the starts of calls. They are separate so that entries of
// refused cannot displace entries of changes (docs/decisions/0058-audit-records.md). machined
// records every call that changes data or reveals a secret, and every pairing attempt. apid reports
// the calls that it has rejected.

// AuditLogDeps are the dependencies of the audit log.
type AuditLogDeps struct {
	// Event adds an event of source "audit".
	Event func(kind, message string)
	// Console writes a line to the console.
	Console func(line string)
}

// AuditLog is the audit log.
type AuditLog struct {
	deps AuditLogDeps

	changes, refused *audit.Log // nil if they cannot be written
	inProgress       audit.Journal
	refusedLimit     *refusedLimit // limits the entries of refused
	// limits, per caller, the entries in changes about calls that possibly changed no data
	changesLimit limits.Rates

	writeMu sync.Mutex // locked by a flush until STATE has answered
	mu      sync.Mutex
	// ended calls with entries that could not be written, the oldest first; they are still in
	// inProgress
	unwritten []audit.Call

	writes  limits.Bounded // writes to changes, refused and inProgress
	timeout time.Duration  // limits.StateTimeout
}

// The method within performs a write of the audit log with a deadline. If STATE does not answer,
// the error is limits.ErrUnknown: the context of the write has ended, but the write may still
// happen.
func (l *AuditLog) within(write func(context.Context) error) error {
	_, err := limits.Read(context.Background(), &l.writes, "audit log", l.timeout, func(ctx context.Context) (struct{}, error) { return struct{}{}, write(ctx) })
	if errors.Is(err, limits.ErrUnknown) {
		return fmt.Errorf("audit: STATE does not answer: %w", err)
	}
	return err
}

// maxUnwritten bounds the ended calls in memory with entries that could not be written. No call
// starts while such entries exist, so all these calls ran at the same time.
const maxUnwritten = 256

// NewAuditLog makes the audit log; Open opens its records. For calls that possibly changed no data,
// it limits each caller to thirty entries at once, and to an entry per minute in the long run.
func NewAuditLog(d AuditLogDeps) *AuditLog {
	return &AuditLog{deps: d, refusedLimit: newRefusedLimit(), changesLimit: limits.Rates{Interval: time.Minute, Burst: 30}, timeout: limits.StateTimeout}
}

// AuditDirs are the directories of the audit log.
type AuditDirs struct{ Changes, Refused, InProgress string }

// SystemAuditDirs returns the directories on a machine: on STATE if stored is true, else in memory.
func SystemAuditDirs(stored bool) AuditDirs {
	if !stored {
		return AuditDirs{Changes: paths.AuditInMemory, Refused: paths.AuditInMemory + "-refused", InProgress: paths.AuditInMemory + "-in-progress"}
	}
	return AuditDirs{Changes: paths.Audit, Refused: paths.AuditRefused, InProgress: paths.AuditInProgress}
}

// Open opens the records. It records the calls that were interrupted when the machine stopped.
func (l *AuditLog) Open(dirs AuditDirs) error {
	var err, err2 error
	if l.changes, err = l.openRecord(dirs.Changes, "", audit.DefaultFiles); err == nil {
		l.inProgress = audit.Journal{Dir: dirs.InProgress}
		err = l.recordUnfinished()
	}
	l.refused, err2 = l.openRecord(dirs.Refused, audit.Refused, audit.RefusedFiles)
	return errors.Join(err, err2)
}

// Records returns the records of the calls that changed or revealed data, and of the rejected
// calls; nil if they cannot be written.
func (l *AuditLog) Records() (changes, refused *audit.Log) { return l.changes, l.refused }

// openRecord opens a record. It moves a damaged record aside and starts a new record.
func (l *AuditLog) openRecord(dir, name string, files int) (*audit.Log, error) {
	record, err := audit.OpenNamed(dir, name, audit.DefaultSize, files)
	if err == nil {
		return record, nil
	}
	aside := dir + ".damaged"
	l.deps.Console(fmt.Sprintf("%v; it is moved to %s, and a new record starts", err, aside))
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside)); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return audit.OpenNamed(dir, name, audit.DefaultSize, files)
}

// recordUnfinished records the calls that had not ended when the machine stopped.
func (l *AuditLog) recordUnfinished() error {
	left, err := l.inProgress.Unfinished()
	for _, e := range left {
		c := e.Call
		c.Status, c.Reason = audit.Unfinished, "started at "+e.At.Format(time.RFC3339Nano)+"; the machine stopped before the call ended"
		if failed := l.changes.Append(time.Now(), c); failed != nil {
			return errors.Join(err, failed)
		}
		err = errors.Join(err, l.inProgress.End(c.ID))
	}
	return err
}

// bounded returns a call with the caller's texts shortened.
func bounded(c audit.Call) audit.Call {
	c.Method = sanitize.ASCII(c.Method, 200)
	// the reason contains text of the caller
	if c.Reason = sanitize.Text(sanitize.Line(c.Reason)); len(c.Reason) > maxReason {
		c.Reason = strings.ToValidUTF8(c.Reason[:maxReason], "") + "…"
	}
	return c
}

// maxReason is the maximum size of a recorded reason, in bytes.
const maxReason = 400

// Record writes a call that changed data into the record changes. If the write fails, the call is
// written before the next call starts, or recorded as unfinished at the next boot.
func (l *AuditLog) Record(c audit.Call) {
	if l.changes == nil {
		return
	}
	l.mu.Lock()
	if len(l.unwritten) < maxUnwritten {
		l.unwritten = append(l.unwritten, bounded(c))
	}
	l.mu.Unlock()
	if err := l.within(func(context.Context) error { return l.flush() }); err != nil {
		l.deps.Event("failure", err.Error())
	}
}

// flush writes the calls that could not be written before.
func (l *AuditLog) flush() error {
	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	for {
		c, found := l.nextUnwritten()
		if !found {
			return nil
		}
		if err := l.changes.Append(time.Now(), c); err != nil {
			return err
		}
		l.mu.Lock()
		l.unwritten = l.unwritten[1:] // only flush removes a call
		l.mu.Unlock()
		if c.ID == "" {
			continue
		}
		if err := l.inProgress.End(c.ID); err != nil {
			return err
		}
	}
}

// nextUnwritten returns the oldest call that could not be written.
func (l *AuditLog) nextUnwritten() (c audit.Call, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unwritten) == 0 {
		return c, false
	}
	return l.unwritten[0], true
}

// RecordRefused writes a rejected call, or the start of a call, into the record refused, within the
// limit of the caller. The limit is per subject and not per certificate: a machine gets another
// certificate on request, and would evade a limit per certificate.
func (l *AuditLog) RecordRefused(c audit.Call) {
	if l.refused == nil {
		return
	}
	recorded, before, others := l.refusedLimit.next(callerKey(c))
	if !recorded {
		return
	}
	if before > 0 {
		c.Reason = strings.TrimPrefix(fmt.Sprintf("%s (and %d more of this caller before it)", c.Reason, before), " ")
	}
	if others > 0 {
		c.Reason = strings.TrimPrefix(fmt.Sprintf("%s (and %d of other callers before it)", c.Reason, others), " ")
	}
	if err := l.within(func(context.Context) error { return l.refused.Append(time.Now(), bounded(c)) }); err != nil {
		l.deps.Event("failure", err.Error())
	}
}

// callerKey returns the key of a call for the limits.
func callerKey(c audit.Call) string { return cmp.Or(c.Subject, limits.NetworkOf(c.Peer)) }

// effect is the certainty with which a call changed data.
type effect int

const (
	effectNone effect = iota // the call changed and revealed no data
	// the call may have changed data, or revealed data that its caller may read in any case
	effectPossible
	effectCertain
)

// effectOf returns the effect of a call that has ended. sent is true if its caller received a part
// of the answer. unchanged is true if its handler changed no data.
func effectOf(c audit.Call, code codes.Code, sent, unchanged bool) effect {
	readOnly := api.AuditRuleOf(c.Method).GetReadOnly()
	switch {
	case code == codes.OK && unchanged:
		return effectNone
	case code == codes.OK && !readOnly && mayChange(c.Role):
		return effectCertain
	case code == codes.OK:
		return effectPossible
	case !sent && (readOnly || slices.Contains(rejectionCodes, code)):
		return effectNone
	}
	return effectPossible // the call failed while it ran
}

// rejectionCodes are the codes of calls that were rejected before their work began.
var rejectionCodes = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition,
	codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
}

// mayChange reports whether calls of a role may change data or reveal much (a snapshot of etcd, for
// example); calls of readers and machines may not.
func mayChange(role string) bool {
	return slices.Contains([]string{pki.RoleAdmin, pki.RoleOperator, pki.RoleImageImport, pki.RoleEtcdBackup}, pki.RolePrefix+role)
}

// target returns the object of a call for the audit log: the target of the method's audit rule and,
// for an issued certificate, its serial number. A rejected caller may have written the text, so it
// is sanitized.
func target(method string, request, answer any) string {
	what := ""
	if r, ok := request.(proto.Message); ok {
		what = audit.Target(api.AuditRuleOf(method).GetTarget(), r)
	}
	if issued, ok := answer.(*api.IssueResponse); ok && issued != nil {
		if cert, err := x509.ParseCertificate(issued.Certificate); err == nil {
			what += ", serial " + pki.Serial(cert)
		}
	}
	return sanitize.ASCII(strings.TrimPrefix(what, ", "), 200)
}

// refusedLimit limits the entries of each caller in the record refused. Without the limit, any
// caller with a certificate could displace the entries of all other callers, because the record
// holds only some twenty thousand calls. Calls over the limit are counted.
type refusedLimit struct {
	rates limits.Rates

	mu      sync.Mutex
	skipped map[string]int // calls per caller since the last recorded call
	others  int            // calls of callers that are not in skipped
}

// newRefusedLimit allows one entry per second and caller in the long run.
func newRefusedLimit() *refusedLimit {
	return &refusedLimit{rates: limits.Rates{Interval: time.Second, Burst: 60}, skipped: map[string]int{}}
}

// next reports whether a call is recorded, and the number of calls that were left out before it: of
// this caller, and of other callers, which are too many to be counted separately.
func (r *refusedLimit) next(key string) (record bool, before, others int) {
	record = r.rates.Allow(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if record {
		before, others = r.skipped[key], r.others
		delete(r.skipped, key)
		r.others = 0
		return true, before, others
	}
	r.skipped[key]++
	for other, n := range r.skipped {
		if len(r.skipped) <= limits.MaxKeys {
			break
		}
		r.others += n
		delete(r.skipped, other)
	}
	return false, 0, 0
}

// recordRefusal records a call that apid rejected.
func (l *AuditLog) recordRefusal(r *api.RecordRefusalRequest) {
	l.RecordRefused(audit.Call{
		Subject: r.Subject, Serial: r.Serial, Role: r.Role, Peer: r.Peer, Method: r.Method, Status: r.Outcome, Reason: r.Reason,
		Duration: time.Duration(r.DurationNs),
	})
}

// errNoRecord is returned if the audit log cannot be written.
var errNoRecord = errors.New("audit: the audit log is not writable on this machine; `orlopctl events` shows why")

// record returns the record changes or, if rejected is true, the record refused. The error is a
// gRPC status.
func (l *AuditLog) record(rejected bool) (*audit.Log, error) {
	log := l.changes
	if rejected {
		log = l.refused
	}
	if log == nil {
		return nil, status.Error(codes.FailedPrecondition, errNoRecord.Error())
	}
	return log, nil
}
