package membership

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Client certificates (docs/decisions/0021-client-certificates.md). The private keys of the
// operators' CAs are not on the machine. The cluster's client CA signs the certificates that the
// machine issues. The ledger contains these certificates, and all known revocations of any issuer.

// Issue signs a certificate for another user, with any role. Only an admin can call it.
func (s *Server) Issue(by api.Caller, r *api.IssueRequest) (*api.IssueResponse, error) {
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
	return s.issue(by, r.Csr, ttl, trust.Issued{Name: r.Name, Role: r.Role})
}

// Renew signs a certificate with the name, role and lineage of the caller.
func (s *Server) Renew(by api.Caller, r *api.RenewRequest) (*api.IssueResponse, error) {
	if err := trust.CheckName(by.Name); err != nil {
		return nil, status.Error(codes.FailedPrecondition, "your certificate cannot be renewed by a machine: "+err.Error())
	}
	if !s.perKey.Allow("row "+cmp.Or(by.Lineage, by.Serial)) || !s.renewals.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are renewed at present; try again")
	}
	ttl, err := trust.TTL(r.Ttl.AsDuration(), s.ledger.Current().Issued.MaxRenewal(by.Serial))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return s.issue(by, r.Csr, ttl, trust.Issued{Name: by.Name, Role: by.Role, Lineage: by.Lineage})
}

// issue signs a certificate and records it.
func (s *Server) issue(by api.Caller, request []byte, ttl time.Duration, entry trust.Issued) (*api.IssueResponse, error) {
	key, err := pki.ParseRequest(request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c := s.deps.config()
	if c == nil || c.Cluster == nil || c.Cluster.Spec.PKI.Client.Key.IsZero() {
		return nil, status.Error(codes.FailedPrecondition, "this machine issues no certificates: its configuration has no client CA with its key (Cluster.spec.pki.client); `orlopctl gen client` makes one by the operator's own CA")
	}
	ca, err := pki.ParseCA(c.Cluster.Spec.PKI.Client.PEM())
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	root := ""
	if entry.Lineage != "" {
		root = by.Issuer
	}
	// The certificate is backdated like the certificates of the operators' CAs: a machine with a
	// slow clock then accepts it, too.
	leaf, err := ca.Issue(pki.Spec{
		CN: entry.Name, O: []string{pki.RolePrefix + entry.Role}, Usage: pki.Client, TTL: ttl, Backdate: pki.CABackdate, For: key, Lineage: entry.Lineage, Root: root,
	})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	entry.Serial = pki.Serial(leaf.Cert)
	entry.Lineage, _ = pki.LineageOf(leaf.Cert)
	entry.At, entry.Expires, entry.TTL, entry.By = s.deps.Now().UTC(), leaf.Cert.NotAfter, ttl, by.Subject
	// A certificate without an entry in the ledger could not be found for a revocation, so the
	// caller gets it only after the entry is stored.
	if err := s.ledger.addIssued(entry); err != nil {
		return nil, err
	}
	return &api.IssueResponse{Certificate: leaf.Cert.Raw}, nil
}

// ListCertificates returns the issued certificates, the open tickets and the revocations.
func (s *Server) ListCertificates() *api.ListCertificatesResponse {
	known, out := s.ledger.Current(), &api.ListCertificatesResponse{}
	for _, i := range known.Issued {
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: i.Serial, Lineage: i.Lineage, Name: i.Name, Role: i.Role, At: timestamppb.New(i.At), Expires: timestamppb.New(i.Expires), By: i.By,
		})
	}
	for _, t := range known.OpenTickets(s.deps.Now()) { // issued by any machine
		out.Issued = append(out.Issued, &api.IssuedCertificate{
			Serial: t.Serial, Lineage: t.Serial, Name: t.Name, Role: trust.RoleJoin, At: timestamppb.New(t.At), Expires: timestamppb.New(t.Expires), By: t.By,
		})
	}
	for _, r := range known.Revoked.Active() {
		out.Revoked = append(out.Revoked, toAPIRevocation(r))
	}
	return out
}

// Revoke revokes or restores. It returns when the change is effective: apid reads the list at every
// call, and ends running calls of revoked callers. unchanged is true if the target was already
// revoked before the call.
func (s *Server) Revoke(ctx context.Context, by api.Caller, r *api.RevokeRequest) (out *api.RevokeResponse, unchanged bool, err error) {
	wanted, err := revocation(r)
	if err != nil {
		return nil, false, status.Error(codes.InvalidArgument, err.Error())
	}
	wanted.At, wanted.By = s.deps.Now().UTC(), by.Subject
	done, known, err := s.ledger.changeRevocation(wanted, r, by.Lineage, by.Name)
	if err != nil {
		return nil, false, err
	}
	// the target was already revoked
	unchanged = !r.Restore && !r.NewList && done.At.Before(wanted.At) && done.Name == ""
	// The enforcement continues even if the caller has disconnected.
	if err := s.deps.Enforce(context.WithoutCancel(ctx)); err != nil {
		return nil, unchanged, status.Errorf(codes.Internal, "it is stored, but not effective yet: %v; it is retried within %s", err, ResyncInterval)
	}
	return &api.RevokeResponse{Revocation: toAPIRevocation(done), IssuedHere: known}, unchanged, nil
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

// GetRevocations returns all revocations to a machine that does not have them.
func (s *Server) GetRevocations(r *api.GetRevocationsRequest) (*api.GetRevocationsResponse, error) {
	known, damaged := s.ledger.readable()
	if damaged != nil {
		return nil, status.Error(codes.FailedPrecondition, damaged.Error())
	}
	out := &api.GetRevocationsResponse{}
	if slices.Equal(known.Revoked.Digest(), r.Digest) {
		return out, nil
	}
	for _, v := range known.Revoked {
		out.Revocations = append(out.Revocations, toAPIRevocation(v))
	}
	return out, nil
}
