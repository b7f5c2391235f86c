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
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Client certificates (docs/decisions/0021-client-certificates.md). The operators' own CAs are not
// on the machine. What the machine issues is signed by the cluster's client CA and stands in its
// book, as does what was revoked, whoever has issued it.

// book is the machine's trust.Book on STATE.
type book struct {
	file string // paths.TrustLedger
	sync.Mutex
	read    bool
	content trust.Ledger
	written []byte        // content, as it lies on STATE; nil where that is not known
	session trust.Session // what is known of it since machined has started
	damaged error         // why what was on STATE could not be read
	told    bool          // that it is

	renewals, joins *rate.Limiter // of people, and of machines
	// of each ticket, and of each row of renewals, so that nobody takes the places of all others
	each    tries
	changes *cell.Cell[int] // how often the content has changed

	// what has passed for certain, by which things are dropped; nil: by the clock
	past func() time.Time
}

// newBook is the one in a file. Each renewal is a signature and a flush of STATE, and everybody who
// may call may ask for it.
func newBook(file string) book {
	return book{
		file: file, renewals: rate.NewLimiter(1, 60), joins: rate.NewLimiter(1, 60), each: tries{each: 10 * time.Second, atOnce: 10},
		changes: cell.New(0),
	}
}

// openLocked reads the book, once. Where there is no storage the book is empty, and nothing can be
// written into it.
func (b *book) openLocked() trust.Ledger {
	known := b.readLocked()
	if b.past != nil {
		known.Floor = b.past()
	}
	return known
}

func (b *book) readLocked() trust.Ledger {
	if b.read {
		return b.content
	}
	text, err := os.ReadFile(b.file)
	if errors.Is(err, fs.ErrNotExist) {
		return b.content // STATE may come later
	}
	b.damaged = nil
	if err == nil {
		b.read = true // and if it is damaged, it stays so
		err = json.Unmarshal(text, &b.content)
	}
	if err != nil {
		b.content, b.damaged = trust.Ledger{}, fmt.Errorf("%s: cannot read: %w", b.file, err)
	}
	return b.content
}

// refusedLocked is what counts no more. Of a list that cannot be read nobody knows which machine
// was removed, so none of them counts.
func (b *book) refusedLocked() []trust.Revocation {
	known := b.openLocked()
	if b.damaged != nil {
		return []trust.Revocation{{Lineage: trust.AnyTicket}}
	}
	return known.ActiveRevocations()
}

// keepLocked makes another content last.
func (b *book) keepLocked(next trust.Ledger) error {
	text, err := json.Marshal(next)
	if err == nil && b.damaged == nil && b.written != nil && bytes.Equal(text, b.written) {
		b.content = next
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(b.file), 0o700)
	}
	if err == nil {
		err = durable.WriteFile(b.file, append(slices.Clip(text), '\n'), 0o600)
	}
	if err != nil {
		b.written = nil
		return fmt.Errorf("trust: cannot write it down: %w", err)
	}
	b.read, b.content, b.damaged, b.written = true, next, nil, text
	b.changes.Update(func(n int) int { return n + 1 })
	return nil
}

// callers is whose calls the machine takes.
func (m *machine) callers(c *config.Config) (credentials.CallerCAs, error) {
	var out credentials.CallerCAs
	var err error
	if out.Operators, err = operators(c); err != nil {
		return out, err
	}
	m.book.Lock()
	defer m.book.Unlock()
	m.book.openLocked()
	damaged := m.book.damaged
	if c != nil && c.Cluster != nil {
		own := c.Cluster.Spec.PKI
		out.Machines = trusted(own.Machine.Cert, own.Accepted.Machine)
		// Which of the issued certificates were revoked is not known any more; the operators' own
		// still count.
		if !own.Client.Cert.IsZero() && damaged == nil {
			out.Clients = trusted(own.Client.Cert, own.Accepted.Client)
		}
	}
	if damaged != nil && !m.book.told {
		m.book.told = true
		m.events.add("trust", "failure", damaged.Error()+"; certificates that machines have issued are refused, and none is issued, until a new list is begun (`orlopctl trust revoke --new-list`)")
	}
	out.JoinRequests = takesRequests(c)
	out.Revoked, err = json.Marshal(m.book.refusedLocked())
	return out, err
}

type trustAPI struct {
	api.UnimplementedTrustServer
	m *machine
}

// Issue signs for somebody else, a role up to the caller's own: only an admin may call it.
func (a trustAPI) Issue(ctx context.Context, r *api.IssueRequest) (*api.IssueResponse, error) {
	if err := trust.CheckName(r.Name); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !slices.Contains(pki.Roles(), r.Role) {
		return nil, status.Errorf(codes.InvalidArgument, "role %.80q: cannot use: expected %s", r.Role, strings.Join(pki.Roles(), ", "))
	}
	life, err := trust.TTL(r.Life.AsDuration(), trust.MaxTTL)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return a.issue(ctx, r.Request, life, trust.Issued{Name: r.Name, Role: r.Role})
}

// Renew signs for the caller what he has already.
func (a trustAPI) Renew(ctx context.Context, r *api.RenewRequest) (*api.IssueResponse, error) {
	name, origin, role := said(ctx, apid.MetadataName), said(ctx, apid.MetadataLineage), said(ctx, apid.MetadataRole)
	if err := trust.CheckName(name); err != nil {
		return nil, status.Error(codes.FailedPrecondition, "your certificate cannot be renewed by a machine: "+err.Error())
	}
	if !a.m.book.each.allowed("row "+cmp.Or(origin, said(ctx, apid.MetadataSerial))) || !a.m.book.renewals.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are renewed at present; try again")
	}
	a.m.book.Lock()
	most := a.m.book.openLocked().MaxRenewal(said(ctx, apid.MetadataSerial))
	a.m.book.Unlock()
	life, err := trust.TTL(r.Life.AsDuration(), most)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return a.issue(ctx, r.Request, life, trust.Issued{Name: name, Role: role, Lineage: origin})
}

// issue signs, and notes it.
func (a trustAPI) issue(ctx context.Context, request []byte, life time.Duration, entry trust.Issued) (*api.IssueResponse, error) {
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
		root = said(ctx, apid.MetadataIssuer)
	}
	// The certificate begins as early as those of the operators' own CAs do, so that a machine
	// whose clock is behind takes it too.
	leaf, err := ca.Issue(pki.Spec{
		CN: entry.Name, O: []string{pki.RolePrefix + entry.Role}, Usage: pki.Client, TTL: life, Backdate: pki.CABackdate, For: key, Lineage: entry.Lineage, Root: root,
	})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	entry.Serial = pki.Serial(leaf.Cert)
	entry.Lineage, _ = pki.LineageOf(leaf.Cert)
	entry.At, entry.Expires, entry.TTL, entry.By = time.Now().UTC(), leaf.Cert.NotAfter, life, said(ctx, apid.MetadataSubject)
	a.m.book.Lock()
	defer a.m.book.Unlock()
	known := a.m.book.openLocked()
	if a.m.book.damaged != nil {
		return nil, status.Error(codes.FailedPrecondition, "no certificate is issued: "+a.m.book.damaged.Error()+"; `orlopctl trust revoke --new-list` begins a new one")
	}
	// A certificate that is not in the book could not be found to be revoked, so it is handed out
	// only when it is.
	if err := a.m.book.keepLocked(known.AddIssued(entry)); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.IssueResponse{Certificate: leaf.Cert.Raw}, nil
}

func (a trustAPI) List(context.Context, *api.ListTrustRequest) (*api.ListTrustResponse, error) {
	a.m.book.Lock()
	known := a.m.book.openLocked()
	a.m.book.Unlock()
	out := &api.ListTrustResponse{}
	for _, i := range known.Issued {
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: i.Serial, Origin: i.Lineage, Name: i.Name, Role: i.Role, At: timestamppb.New(i.At), Expires: timestamppb.New(i.Expires), By: i.By,
		})
	}
	for _, t := range known.OpenTickets(time.Now()) { // whichever machine has issued them
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: t.Serial, Origin: t.Serial, Name: t.Name, Role: trust.RoleJoin, At: timestamppb.New(t.At), Expires: timestamppb.New(t.Expires), By: t.By,
		})
	}
	for _, r := range known.ActiveRevocations() {
		out.Revoked = append(out.Revoked, toldRevocation(r))
	}
	return out, nil
}

// Revoke is in force when it returns: apid looks at the list with each call, and ends those that go
// on.
func (a trustAPI) Revoke(ctx context.Context, r *api.RevokeRequest) (*api.RevokeResponse, error) {
	wanted, err := revocation(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	wanted.At, wanted.By = time.Now().UTC(), said(ctx, apid.MetadataSubject)
	done, known, err := a.m.book.change(wanted, r, said(ctx, apid.MetadataLineage), said(ctx, apid.MetadataName))
	if err != nil {
		return nil, err
	}
	// it was revoked before
	if !r.Restore && !r.NewList && done.At.Before(wanted.At) && done.Name == "" {
		didNothing(ctx)
	}
	// whoever asked for it may be gone
	if err := a.m.enforce(context.WithoutCancel(ctx)); err != nil {
		return nil, status.Errorf(codes.Internal, "it is written down, but not in force yet: %v; it will be tried again within %s", err, lookAgain)
	}
	return &api.RevokeResponse{Revocation: toldRevocation(done), IssuedHere: known}, nil
}

// revocation reads what is to be revoked, or restored.
func revocation(r *api.RevokeRequest) (wanted trust.Revocation, err error) {
	switch {
	case (r.Serial == "") == (r.Name == ""):
		return wanted, errors.New("revocation: cannot tell what is meant: expected a serial number or a name")
	case r.Serial != "" && r.Restore:
		return wanted, errors.New("revocation: a certificate cannot be restored; issue another one")
	case r.Serial != "":
		wanted.Lineage, err = trust.ParseSerial(r.Serial)
		return wanted, err
	}
	wanted.Name = r.Name
	return wanted, trust.CheckHolder(r.Name)
}

// change revokes or restores, but not the certificate of who asks for it: nobody might be left who
// could take it back. known: the machine has issued what is revoked.
func (b *book) change(wanted trust.Revocation, r *api.RevokeRequest, ownOrigin, ownName string) (done trust.Revocation, known bool, err error) {
	b.Lock()
	defer b.Unlock()
	next := b.openLocked()
	if b.damaged != nil && !r.NewList {
		return done, false, status.Error(codes.FailedPrecondition, b.damaged.Error()+"; with --new-list a new one is begun, and what was revoked before counts again")
	}
	// its other certificates have other names
	if member := next.MemberOfRevocation(wanted); member != "" && !r.Restore {
		return done, false, status.Errorf(codes.FailedPrecondition, "revocation refused: it is of machine %s of the cluster, which has more of them; `orlopctl nodes remove %s` takes all", member, member)
	}
	done, known = wanted, next.HasIssued(wanted.Lineage)
	if r.Restore {
		next, err = next.Restore(wanted)
	} else {
		next, done, err = next.Revoke(wanted)
		if err == nil && (trust.SameLineage(done.Lineage, ownOrigin) || done.Name != "" && done.Name == ownName) {
			err = errors.New("revocation refused: it is your own certificate, or your own name; have another admin do it, or make yourself a certificate with another name by the operator's CA (`orlopctl gen client --role admin --name`)")
		}
	}
	if err != nil {
		return done, known, status.Error(codes.FailedPrecondition, err.Error())
	}
	if b.damaged != nil {
		err = b.keepDamaged()
	}
	if err == nil {
		err = b.keepLocked(next)
	}
	if err != nil {
		return done, known, status.Error(codes.Unavailable, err.Error())
	}
	return done, known, nil
}

// keepDamaged gives the file another name too. It keeps its own until another content takes its
// place: without a file nothing would be revoked, and a power cut between the two must not come to
// that.
func (b *book) keepDamaged() error {
	aside := b.file + ".damaged"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(b.file, aside)
}
