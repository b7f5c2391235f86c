package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Client certificates (docs/decisions/0021-client-certificates.md). The private keys of the
// operators' CAs are not on the machine. The cluster's client CA signs the certificates that the
// machine issues. The ledger contains them, and all known revocations of any issuer.

// ledger is the machine's trust.Ledger, stored on STATE.
type ledger struct {
	file string // paths.TrustLedger
	sync.Mutex
	loaded   bool
	content  trust.Ledger
	stored   []byte        // content as stored on STATE; nil if unknown
	session  trust.Session // state since the start of machined
	damaged  error         // why the stored ledger is unreadable
	reported bool          // an event reported the damage

	renewals, joins *rate.Limiter // limits of renewals by operators, and of joins of machines
	// limit per ticket and per lineage, so that no caller exhausts the limits of all others
	perKey  limits.Rates
	changes *cell.Cell[int] // number of changes of the content

	// time that has certainly passed, by which entries expire; nil for the clock
	floor func() time.Time
}

// newLedger returns the ledger of a file. Each renewal costs a signature and a flush of STATE, and
// every caller may request it.
func newLedger(file string) ledger {
	return ledger{
		file: file, renewals: rate.NewLimiter(1, 60), joins: rate.NewLimiter(1, 60), perKey: limits.Rates{Interval: 10 * time.Second, Burst: 10},
		changes: cell.New(0),
	}
}

// currentLocked reads the ledger from STATE at first use. Without storage the ledger is empty and
// cannot be written.
func (b *ledger) currentLocked() trust.Ledger {
	known := b.readLocked()
	if b.floor != nil {
		known.Floor = b.floor()
	}
	return known
}

func (b *ledger) readLocked() trust.Ledger {
	if b.loaded {
		return b.content
	}
	text, err := os.ReadFile(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		return b.content // STATE may be mounted later
	}
	b.damaged = nil
	if err == nil {
		b.loaded = true // a damaged ledger is not read again
		err = json.Unmarshal(text, &b.content)
	}
	if err != nil {
		b.content, b.damaged = trust.Ledger{}, fmt.Errorf("%s: cannot read: %w", b.file, err)
	}
	return b.content
}

// revokedLocked returns the active revocations. If the ledger is unreadable, the removed machines
// are unknown, so it revokes all members.
func (b *ledger) revokedLocked() []trust.Revocation {
	known := b.currentLocked()
	if b.damaged != nil {
		return []trust.Revocation{{Lineage: trust.AnyTicket}}
	}
	return known.ActiveRevocations()
}

// storeLocked writes another content to STATE.
func (b *ledger) storeLocked(next trust.Ledger) error {
	text, err := json.Marshal(next)
	if err == nil && b.damaged == nil && b.stored != nil && bytes.Equal(text, b.stored) {
		b.content = next
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(b.file), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(b.file, append(slices.Clip(text), '\n'), 0o600)
	}
	if err != nil {
		b.stored = nil
		return fmt.Errorf("trust: cannot store the ledger: %w", err)
	}
	b.loaded, b.content, b.damaged, b.stored = true, next, nil, text
	b.changes.Update(func(n int) int { return n + 1 })
	return nil
}

// callers returns the CAs of the callers that the machine accepts.
func (m *machine) callers(c *config.Config) (credentials.CallerCAs, error) {
	var out credentials.CallerCAs
	var err error
	if out.Operators, err = ownership.Operators(c); err != nil {
		return out, err
	}
	m.ledger.Lock()
	defer m.ledger.Unlock()
	m.ledger.currentLocked()
	damaged := m.ledger.damaged
	if c != nil && c.Cluster != nil {
		own := c.Cluster.Spec.PKI
		out.Machines = trusted(own.Machine.Cert, own.Accepted.Machine)
		// It is unknown which of the issued certificates were revoked, so none is valid; the
		// operators' own certificates stay valid.
		if !own.Client.Cert.IsZero() && damaged == nil {
			out.Clients = trusted(own.Client.Cert, own.Accepted.Client)
		}
	}
	if damaged != nil && !m.ledger.reported {
		m.ledger.reported = true
		m.events.add("trust", "failure", damaged.Error()+"; certificates that machines have issued are rejected, and none is issued, until a new list is started (`orlopctl trust revoke --new-list`)")
	}
	out.JoinRequests = acceptsJoinRequests(c)
	out.Revoked, err = json.Marshal(m.ledger.revokedLocked())
	return out, err
}

type trustAPI struct {
	api.UnimplementedTrustServer
	m *machine
}

// Issue signs a certificate for another user, with a role up to that of the caller: only an admin
// can call it.
func (a trustAPI) Issue(ctx context.Context, r *api.IssueRequest) (*api.IssueResponse, error) {
	if err := trust.CheckName(r.Name); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !slices.Contains(pki.Roles(), r.Role) {
		return nil, status.Errorf(codes.InvalidArgument, "role %.80q: cannot use: expected %s", r.Role, strings.Join(pki.Roles(), ", "))
	}
	ttl, err := trust.TTL(r.Ttl.AsDuration(), trust.MaxTTL)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return a.issue(ctx, r.Csr, ttl, trust.Issued{Name: r.Name, Role: r.Role})
}

// Renew signs a certificate with the name, role and lineage of the caller.
func (a trustAPI) Renew(ctx context.Context, r *api.RenewRequest) (*api.IssueResponse, error) {
	name, lineage, role := callerInfo(ctx, apid.MetadataName), callerInfo(ctx, apid.MetadataLineage), callerInfo(ctx, apid.MetadataRole)
	if err := trust.CheckName(name); err != nil {
		return nil, status.Error(codes.FailedPrecondition, "your certificate cannot be renewed by a machine: "+err.Error())
	}
	if !a.m.ledger.perKey.Allow("row "+cmp.Or(lineage, callerInfo(ctx, apid.MetadataSerial))) || !a.m.ledger.renewals.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are renewed at present; try again")
	}
	a.m.ledger.Lock()
	maxTTL := a.m.ledger.currentLocked().MaxRenewal(callerInfo(ctx, apid.MetadataSerial))
	a.m.ledger.Unlock()
	ttl, err := trust.TTL(r.Ttl.AsDuration(), maxTTL)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return a.issue(ctx, r.Csr, ttl, trust.Issued{Name: name, Role: role, Lineage: lineage})
}

// issue signs a certificate and records it.
func (a trustAPI) issue(ctx context.Context, request []byte, ttl time.Duration, entry trust.Issued) (*api.IssueResponse, error) {
	key, err := pki.ParseRequest(request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	now, _ := a.m.config.Get()
	if now.config == nil || now.config.Cluster == nil || now.config.Cluster.Spec.PKI.Client.Key.IsZero() {
		return nil, status.Error(codes.FailedPrecondition, "this machine issues no certificates: its configuration has no client CA with its key (Cluster.spec.pki.client); `orlopctl gen client` makes one by the operator's own CA")
	}
	ca, err := authority(now.config.Cluster.Spec.PKI.Client)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	root := ""
	if entry.Lineage != "" {
		root = callerInfo(ctx, apid.MetadataIssuer)
	}
	// The certificate is backdated like the certificates of the operators' CAs, so that a machine
	// with a late clock accepts it.
	leaf, err := ca.Issue(pki.Spec{
		CN: entry.Name, O: []string{pki.RolePrefix + entry.Role}, Usage: pki.Client, TTL: ttl, Backdate: pki.CABackdate, For: key, Lineage: entry.Lineage, Root: root,
	})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	entry.Serial = pki.Serial(leaf.Cert)
	entry.Lineage, _ = pki.LineageOf(leaf.Cert)
	entry.At, entry.Expires, entry.TTL, entry.By = time.Now().UTC(), leaf.Cert.NotAfter, ttl, callerInfo(ctx, apid.MetadataSubject)
	a.m.ledger.Lock()
	defer a.m.ledger.Unlock()
	known := a.m.ledger.currentLocked()
	if a.m.ledger.damaged != nil {
		return nil, status.Error(codes.FailedPrecondition, "no certificate is issued: "+a.m.ledger.damaged.Error()+"; `orlopctl trust revoke --new-list` starts a new one")
	}
	// A certificate without an entry in the ledger could not be found for a revocation, so the
	// caller gets it only after the entry is stored.
	if err := a.m.ledger.storeLocked(known.AddIssued(entry)); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.IssueResponse{Certificate: leaf.Cert.Raw}, nil
}

func (a trustAPI) ListCertificates(context.Context, *api.ListCertificatesRequest) (*api.ListCertificatesResponse, error) {
	a.m.ledger.Lock()
	known := a.m.ledger.currentLocked()
	a.m.ledger.Unlock()
	out := &api.ListCertificatesResponse{}
	for _, i := range known.Issued {
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: i.Serial, Lineage: i.Lineage, Name: i.Name, Role: i.Role, At: timestamppb.New(i.At), Expires: timestamppb.New(i.Expires), By: i.By,
		})
	}
	for _, t := range known.OpenTickets(time.Now()) { // issued by any machine
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: t.Serial, Lineage: t.Serial, Name: t.Name, Role: trust.RoleJoin, At: timestamppb.New(t.At), Expires: timestamppb.New(t.Expires), By: t.By,
		})
	}
	for _, r := range known.ActiveRevocations() {
		out.Revoked = append(out.Revoked, toAPIRevocation(r))
	}
	return out, nil
}

// Revoke returns after the revocation is effective: apid reads the list at every call and ends
// running calls.
func (a trustAPI) Revoke(ctx context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	wanted, err := revocation(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	wanted.At, wanted.By = time.Now().UTC(), callerInfo(ctx, apid.MetadataSubject)
	done, known, err := a.m.ledger.changeRevocation(wanted, r, callerInfo(ctx, apid.MetadataLineage), callerInfo(ctx, apid.MetadataName))
	if err != nil {
		return nil, err
	}
	// it was revoked before
	if !r.Restore && !r.NewList && done.At.Before(wanted.At) && done.Name == "" {
		setUnchanged(ctx)
	}
	// the caller may have disconnected
	if err := a.m.enforceRevocations(context.WithoutCancel(ctx)); err != nil {
		return nil, status.Errorf(codes.Internal, "it is stored, but not effective yet: %v; it is retried within %s", err, resyncInterval)
	}
	return &api.RevokeResponse{Revocation: toAPIRevocation(done), IssuedHere: known}, nil
}

// revocation reads the target of a revocation or restore.
func revocation(r *api.RevokeRequest) (wanted trust.Revocation, err error) {
	switch {
	case (r.Serial == "") == (r.Name == ""):
		return wanted, errors.New("revocation: ambiguous target: expected a serial number or a name")
	case r.Serial != "" && r.Restore:
		return wanted, errors.New("revocation: a certificate cannot be restored; issue another one")
	case r.Serial != "":
		wanted.Lineage, err = trust.ParseSerial(r.Serial)
		return wanted, err
	}
	wanted.Name = r.Name
	return wanted, trust.CheckHolder(r.Name)
}

// changeRevocation revokes or restores, but rejects self-revocation, which could lock out the last
// admin. known reports whether this machine issued the certificate.
func (b *ledger) changeRevocation(wanted trust.Revocation, r *api.RevokeRequest, ownLineage, ownName string) (done trust.Revocation, known bool, err error) {
	b.Lock()
	defer b.Unlock()
	next := b.currentLocked()
	if b.damaged != nil && !r.NewList {
		return done, false, status.Error(codes.FailedPrecondition, b.damaged.Error()+"; --new-list starts a new one without the earlier revocations")
	}
	// other certificates of the machine have other names
	if member := next.MemberOfRevocation(wanted); member != "" && !r.Restore {
		return done, false, status.Errorf(codes.FailedPrecondition, "revocation refused: the certificate belongs to machine %s of the cluster, which has more of them; `orlopctl nodes remove %s` revokes all", member, member)
	}
	done, known = wanted, next.HasIssued(wanted.Lineage)
	if r.Restore {
		next, err = next.Restore(wanted)
	} else {
		next, done, err = next.Revoke(wanted)
		if err == nil && (trust.SameLineage(done.Lineage, ownLineage) || done.Name != "" && done.Name == ownName) {
			err = errors.New("revocation refused: it is your own certificate, or your own name; let another admin revoke it, or create a certificate with another name with the operator's CA (`orlopctl gen client --role admin --name`)")
		}
	}
	if err != nil {
		return done, known, status.Error(codes.FailedPrecondition, err.Error())
	}
	if b.damaged != nil {
		err = b.linkDamaged()
	}
	if err == nil {
		err = b.storeLocked(next)
	}
	if err != nil {
		return done, known, status.Error(codes.Unavailable, err.Error())
	}
	return done, known, nil
}

// linkDamaged gives the damaged file a second name. The file retains its own name until new content
// replaces it: without a file nothing would be revoked, and a power cut between the two steps must
// not cause that.
func (b *ledger) linkDamaged() error {
	second := b.file + ".damaged"
	if err := os.Remove(second); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(b.file, second)
}
