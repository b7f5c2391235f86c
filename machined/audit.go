package main

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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/sanitize"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The records of calls (package audit): one of those that changed or revealed something, and one of
// those that came to nothing and of beginnings, so that the latter cannot push out the former
// (docs/decisions/0058-two-records.md). machined writes down every call that changes something or
// gives away a secret, and every pairing that was asked for; apid reports what it has refused.

// records are the records of calls.
type callRecords struct {
	changes, refused *audit.Log // nil where they cannot be written
	going            audit.Journal
	refusals         *refusals // bounds what is recorded in refused
	// bounds, for each caller, what is recorded in changes of which it is not certain that it
	// belongs there
	spare tries

	mu sync.Mutex
	// ends that could not be written, the oldest first; their calls are in going
	unwritten []audit.Call
}

// maxUnwritten is how many ends are remembered that could not be written: no call begins while
// there is one, so these are of calls that went on at the same time.
const maxUnwritten = 256

// newCallRecords lets each caller have thirty entries at once, and one a minute in the long run, of
// calls that may have done nothing.
func newCallRecords() *callRecords {
	return &callRecords{refusals: newRefusals(), spare: tries{each: time.Minute, atOnce: 30}}
}

// openRecords opens the records on STATE, or in memory as long as there is none. What went on when
// the machine stopped is recorded.
func (m *machine) openRecords() error {
	dirs := [3]string{paths.Audit, paths.AuditRefused, paths.AuditInProgress}
	if why, _ := m.noStorage.Get(); why != "" {
		dirs = [3]string{paths.AuditInMemory, paths.AuditInMemory + "-refused", paths.AuditInMemory + "-going"}
	}
	var err, err2 error
	if m.calls.changes, err = m.openRecord(dirs[0], "", audit.DefaultFiles); err == nil {
		m.calls.going = audit.Journal{Dir: dirs[2]}
		err = m.recordUnfinished()
	}
	m.calls.refused, err2 = m.openRecord(dirs[1], audit.Refused, audit.RefusedFiles)
	return errors.Join(err, err2)
}

// openRecord opens one. One that cannot be gone on with is put aside, and another one begun.
func (m *machine) openRecord(dir, name string, files int) (*audit.Log, error) {
	l, err := audit.OpenNamed(dir, name, audit.DefaultSize, files)
	if err == nil {
		return l, nil
	}
	aside := dir + ".damaged"
	m.say(fmt.Sprintf("%v; it is kept in %s, and a new record begins", err, aside))
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside)); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return audit.OpenNamed(dir, name, audit.DefaultSize, files)
}

// recordUnfinished records the calls that had not ended when the machine stopped.
func (m *machine) recordUnfinished() error {
	left, err := m.calls.going.Unfinished()
	for _, e := range left {
		c := e.Call
		c.Status, c.Reason = audit.Unfinished, "begun at "+e.At.Format(time.RFC3339Nano)+"; the machine stopped before it had ended"
		if failed := m.calls.changes.Append(time.Now(), c); failed != nil {
			return errors.Join(err, failed)
		}
		err = errors.Join(err, m.calls.going.End(c.ID))
	}
	return err
}

// bounded is a call as it is recorded: what the caller has said in it is cut.
func bounded(c audit.Call) audit.Call {
	c.Method = sanitize.ASCII(c.Method, 200)
	// the caller's own words are in it
	if c.Reason = sanitize.Text(sanitize.Line(c.Reason)); len(c.Reason) > maxReason {
		c.Reason = strings.ToValidUTF8(c.Reason[:maxReason], "") + "…"
	}
	return c
}

// maxReason is how much of a reason is recorded, in bytes.
const maxReason = 400

// record writes a call into the record of those that did something. One that cannot be written now
// is written before the next one begins, or is recorded as unfinished by the next start.
func (m *machine) record(c audit.Call) {
	r := m.calls
	if r == nil || r.changes == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unwritten) < maxUnwritten {
		r.unwritten = append(r.unwritten, bounded(c))
	}
	if err := r.flushLocked(); err != nil {
		m.events.add("audit", "failure", err.Error())
	}
}

// flushLocked writes what could not be written before.
func (r *callRecords) flushLocked() error {
	for len(r.unwritten) > 0 {
		c := r.unwritten[0]
		if err := r.changes.Append(time.Now(), c); err != nil {
			return err
		}
		r.unwritten = r.unwritten[1:]
		if c.ID == "" {
			continue
		}
		if err := r.going.End(c.ID); err != nil {
			return err
		}
	}
	return nil
}

// recordRefused writes a call that came to nothing, or that begins, into the other record: not more
// of a caller than refusals allow. Callers are told apart by who they are, and not by their
// certificates: a machine is given another whenever it asks.
func (m *machine) recordRefused(c audit.Call) {
	r := m.calls
	if r == nil || r.refused == nil {
		return
	}
	recorded, before := r.refusals.next(whose(c))
	if !recorded {
		return
	}
	if before > 0 {
		c.Reason = strings.TrimPrefix(fmt.Sprintf("%s (and %d more of this caller before it)", c.Reason, before), " ")
	}
	if err := r.refused.Append(time.Now(), bounded(c)); err != nil {
		m.events.add("audit", "failure", err.Error())
	}
}

// whose is who a call counts for.
func whose(c audit.Call) string { return cmp.Or(c.Subject, networkOf(c.Peer)) }

// weight is how certain it is that a call did something.
type weight int

const (
	nothing weight = iota // it changed and revealed nothing
	// it may have, or it revealed something that its caller may look at in any case
	doubtful
	certain
)

// reveals are the calls that change nothing, and show something that is not for everybody who may
// look.
var reveals = map[string]bool{
	api.Machine_ReadFile_FullMethodName: true, api.Machine_ListFiles_FullMethodName: true, api.Machine_Relay_FullMethodName: true,
	api.Debug_Capture_FullMethodName: true, api.Debug_Profile_FullMethodName: true,
}

// weigh tells how certain it is that a call did something that has ended: sent says that its caller
// has had an answer, unchanged that its handler says that it did nothing.
func weigh(c audit.Call, code codes.Code, sent, unchanged bool) weight {
	switch {
	case code == codes.OK && unchanged:
		return nothing
	case code == codes.OK && !reveals[c.Method] && mayChange(c.Role):
		return certain
	case code == codes.OK:
		return doubtful
	case !sent && (reveals[c.Method] || slices.Contains(refusing, code)):
		return nothing
	}
	return doubtful // it failed on the way
}

// refusing are the codes with which a call ends that was not begun.
var refusing = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition,
	codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated,
}

// mayChange tells operators, and those who may do one thing that changes or reveals much, from
// those who may only look, and from machines.
func mayChange(role string) bool {
	return slices.Contains([]string{pki.RoleAdmin, pki.RoleOperator, pki.RoleImageImport, pki.RoleEtcdBackup}, pki.RolePrefix+role)
}

// roleName is a role as apid says it: "admin".
func roleName(organisation string) string { return strings.TrimPrefix(organisation, pki.RolePrefix) }

// target is what a call is about, where its method alone does not say it. It may come from somebody
// whose call is refused.
func target(request, answer any) string {
	what := ""
	switch r := request.(type) {
	case *api.RestartServiceRequest:
		what = "service " + r.Name
	case *api.IssueRequest:
		what = "name " + r.Name + ", role " + r.Role
	case *api.RevokeRequest:
		what = trust.Revocation{Lineage: r.Serial, Name: r.Name}.String()
		if r.Restore {
			what = "restore " + what
		}
	case *api.ResetRequest:
		what = enum(r.Wipe, "WIPE_")
	case *api.ApplyRequest:
		if what = enum(r.Mode, "MODE_"); r.Patch {
			what += ", patch"
		}
		if r.Number != 0 {
			what += fmt.Sprintf(", number %d", r.Number)
		}
		if r.NoTrial {
			what += ", no trial"
		}
		if r.Force {
			what += ", force"
		}
	case *api.CaptureRequest:
		what = "link " + r.Link
	case *api.ProfileRequest:
		what = "process " + r.Process + ", " + cmp.Or(r.Kind, "cpu")
	case *api.ReadFileRequest:
		what = "file " + r.Path
	case *api.ListFilesRequest:
		what = "folder " + r.Path
	case *api.FetchBundleRequest: // it may hold a password
		what = cmp.Or(r.Reference, "peer "+r.Peer)
	case *api.EtcdRestoreRequest:
		switch what = "SHA-256 " + r.Sha256; {
		case r.Undo:
			what = "undo"
		case r.Kept != "":
			what = "kept " + r.Kept
		}
	case *api.EtcdSnapshotRequest:
		if r.Kept != "" {
			what = "kept " + r.Kept
		}
	case *api.RelayData:
		what = "machine " + r.Target
	case *api.InviteRequest:
		what = "machine " + r.Name
	case *api.ApproveRequest:
		what = "machine " + r.Name + ", key " + r.Fingerprint
	case *api.DenyRequest:
		what = "machine " + r.Name + ", key " + r.Fingerprint
	case *api.RemoveMemberRequest:
		what = "machine " + r.Name
	case *api.SuspendRequest:
		what = r.Kind + " " + r.Name
	case *api.ResumeRequest:
		if what = r.Kind + " " + r.Name; r.Forget {
			what += ", forget"
		}
	case *api.EtcdRemoveRequest:
		what = "member " + r.Member
	case *api.KubeconfigRequest:
		if ttl := r.Ttl.AsDuration(); ttl > 0 {
			what = "for " + ttl.String()
		}
	}
	if issued, ok := answer.(*api.IssueResponse); ok && issued != nil {
		if cert, err := x509.ParseCertificate(issued.Certificate); err == nil {
			what += ", serial " + pki.Serial(cert)
		}
	}
	return sanitize.ASCII(strings.TrimPrefix(what, ", "), 200)
}

// enum is an enumeration's value without what all of them begin with: "state", or "unspecified".
func enum(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}

// refusals bounds what is recorded of calls that are refused, and of those who may change nothing:
// the record holds some twenty thousand calls, and whoever has any certificate could have all
// others forgotten. Those that are left out are counted.
type refusals struct {
	tries
	left map[string]int // by who called, since the last one that was recorded
}

// newRefusals lets each caller have one a second recorded in the long run.
func newRefusals() *refusals {
	return &refusals{tries: tries{each: time.Second, atOnce: 60}, left: map[string]int{}}
}

// next tells whether one is recorded, and how many of the same caller were left out before it.
func (r *refusals) next(who string) (record bool, before int) {
	record = r.allowed(who)
	r.Lock()
	defer r.Unlock()
	if !record {
		if len(r.left) >= triesTracked {
			clear(r.left)
		}
		r.left[who]++
		return false, 0
	}
	before = r.left[who]
	delete(r.left, who)
	return true, before
}

func (a doorAPI) Refused(_ context.Context, r *api.RefusedRequest) (*api.RefusedResponse, error) {
	a.m.recordRefused(audit.Call{
		Subject: r.Subject, Serial: r.Serial, Role: r.Role, Peer: r.Peer, Method: r.Method, Status: r.Outcome, Reason: r.Reason,
		Duration: time.Duration(r.DurationNs),
	})
	return &api.RefusedResponse{}, nil
}

// errNoRecord is why nothing is recorded.
var errNoRecord = errors.New("audit: nothing is recorded on this machine; `orlopctl events` says why")

type auditAPI struct {
	api.UnimplementedAuditServer
	m *machine
}

func (a auditAPI) Read(r *api.ReadAuditRequest, stream grpc.ServerStreamingServer[api.AuditLine]) error {
	log := a.m.calls.changes
	if r.Refused {
		log = a.m.calls.refused
	}
	if log == nil {
		return status.Error(codes.FailedPrecondition, errNoRecord.Error())
	}
	for after := r.After; ; {
		grown := log.Changed()
		err := log.Read(after, func(number uint64, line []byte) error {
			after = max(after, number) // one that cannot be read is for the caller to see
			return stream.Send(&api.AuditLine{Line: line})
		})
		if err != nil || !r.Follow {
			return endOfStream(err)
		}
		select {
		case <-grown:
		case <-stream.Context().Done():
			return endOfStream(stream.Context().Err())
		case <-a.m.working.Done():
			return status.Error(codes.Unavailable, "the machine goes down")
		}
	}
}
