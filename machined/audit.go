package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/printable"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The record of calls (package audit). machined writes down every call that changes something or gives away a secret, when it has
// ended, and every pairing that was asked for; apid reports what it has refused.

// openRecord opens the record on STATE, or in memory as long as there is none. One that cannot be gone on with is put aside, and
// another one begun.
func (m *machine) openRecord() (*audit.Log, error) {
	dir := paths.Audit
	if why, _ := m.noStorage.Get(); why != "" {
		dir = paths.AuditInMemory
	}
	l, err := audit.Open(dir, audit.DefaultSize, audit.DefaultFiles)
	if err == nil {
		return l, nil
	}
	aside := dir + ".damaged"
	m.say(fmt.Sprintf("%v; it is kept in %s, and a new record begins", err, aside))
	if err := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside)); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return audit.Open(dir, audit.DefaultSize, audit.DefaultFiles)
}

// record writes a call down. One that cannot be written down was made all the same: a full disk must not keep an operator out.
func (m *machine) record(c audit.Call) {
	if m.audit == nil {
		return
	}
	c.Method = printable.ASCII(c.Method, 200)
	if c.Reason = printable.Text(c.Reason); len(c.Reason) > maxReason { // the caller's own words are in it
		c.Reason = strings.ToValidUTF8(c.Reason[:maxReason], "") + "…"
	}
	if err := m.audit.Append(time.Now(), c); err != nil {
		m.events.add("audit", "failure", err.Error())
	}
}

// maxReason is how much of a reason is recorded, in bytes.
const maxReason = 400

// guard stands before every call that comes from apid.
type guard struct {
	m       *machine
	audited func(method string) bool // apid.Mutates
}

func (g guard) unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = g.pass(ctx, info.FullMethod, func() (string, error) {
		err = panics.Do("call "+info.FullMethod, func() (err error) { answer, err = handle(ctx, r); return err })
		return target(r, answer), failedProgram(err)
	})
	return answer, err
}

func (g guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	s := &firstSeen{ServerStream: stream}
	return g.pass(stream.Context(), info.FullMethod, func() (string, error) {
		err := failedProgram(panics.Do("call "+info.FullMethod, func() error { return handle(srv, s) }))
		if about := s.target.Load(); about != nil {
			return *about, err
		}
		return "", err
	})
}

// firstSeen is a stream that notes what its first request is about.
type firstSeen struct {
	grpc.ServerStream
	target atomic.Pointer[string]
}

// RecvMsg implements grpc.ServerStream.
func (s *firstSeen) RecvMsg(request any) error {
	err := s.ServerStream.RecvMsg(request)
	if err == nil && s.target.Load() == nil {
		about := target(request, nil)
		s.target.CompareAndSwap(nil, &about)
	}
	return err
}

// pass makes a call, which returns what it was about.
func (g guard) pass(ctx context.Context, method string, call func() (target string, err error)) error {
	if err := g.m.beforeOwner(method); err != nil {
		return err
	}
	start := time.Now()
	target, err := call()
	if g.audited(method) {
		c := audit.Call{
			Subject: said(ctx, apid.MetadataSubject), Serial: said(ctx, apid.MetadataSerial), Role: said(ctx, apid.MetadataRole),
			Peer: said(ctx, apid.MetadataPeer), Method: method, Target: target, Outcome: status.Code(err).String(), Duration: time.Since(start),
		}
		if err != nil {
			c.Reason = status.Convert(err).Message()
		}
		if c.Role == roleName(pki.RoleAdmin) || c.Role == roleName(pki.RoleOperator) {
			g.m.record(c)
		} else {
			g.m.recordBounded(c)
		}
	}
	return err
}

// roleName is a role as apid says it: "admin".
func roleName(organisation string) string { return strings.TrimPrefix(organisation, pki.RolePrefix) }

// recordBounded records a call that was refused, or of somebody who may only look, or of a machine: not more than refusals allow. Callers are told apart
// by who they are, and not by their certificates: a machine is given another whenever it asks.
func (m *machine) recordBounded(c audit.Call) {
	if m.audit == nil {
		return
	}
	recorded, before := m.refusals.next(cmp.Or(c.Subject, networkOf(c.Peer)))
	if !recorded {
		return
	}
	if before > 0 {
		c.Reason = strings.TrimPrefix(fmt.Sprintf("%s (and %d more of this caller before it)", c.Reason, before), " ")
	}
	m.record(c)
}

// target is what a call is about, where its method alone does not say it. It may come from somebody whose call is refused.
func target(request, answer any) string {
	what := ""
	switch r := request.(type) {
	case *api.RestartServiceRequest:
		what = "service " + r.Name
	case *api.IssueRequest:
		what = "name " + r.Name + ", role " + r.Role
	case *api.RevokeRequest:
		what = trust.Revocation{Origin: r.Serial, Name: r.Name}.String()
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
	return printable.ASCII(strings.TrimPrefix(what, ", "), 200)
}

// enum is an enumeration's value without what all of them begin with: "state", or "unspecified".
func enum(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}

// refusals bounds what is recorded of calls that are refused, and of those who may change nothing: the record holds some twenty thousand calls, and whoever has any certificate could
// have all others forgotten. Those that are left out are counted.
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
	a.m.recordBounded(audit.Call{
		Subject: r.Subject, Serial: r.Serial, Role: r.Role, Peer: r.Peer, Method: r.Method, Outcome: r.Outcome, Reason: r.Reason,
		Duration: time.Duration(r.DurationNs),
	})
	return &api.RefusedResponse{}, nil
}

type auditAPI struct {
	api.UnimplementedAuditServer
	m *machine
}

func (a auditAPI) Read(r *api.ReadAuditRequest, stream grpc.ServerStreamingServer[api.AuditLine]) error {
	if a.m.audit == nil {
		return status.Error(codes.FailedPrecondition, "audit: nothing is recorded on this machine; `orlopctl events` says why")
	}
	for after := r.After; ; {
		grown := a.m.audit.Grown()
		err := a.m.audit.Read(after, func(number uint64, line []byte) error {
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
