package membership

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// controlPlaneConfig returns the configuration for a call between control-plane machines.
func (s *Server) controlPlaneConfig(by api.Caller) (*config.Config, error) {
	if err := by.RequireControlPlane(); err != nil {
		return nil, err
	}
	c := s.deps.config()
	if !c.IsControlPlane() {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not a control-plane machine")
	}
	return c, nil
}

// GetMembership returns the membership to a control-plane machine that does not have it.
func (s *Server) GetMembership(by api.Caller, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	c, err := s.controlPlaneConfig(by)
	if err != nil {
		return nil, err
	}
	current, err := s.ledger.withID()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.GetMembershipResponse{Ledger: current.ID, Machine: c.Machine.Metadata.Name}
	if membership := current.Public(); !slices.Equal(membership.Digest(), r.Digest) {
		out.Membership = toMembership(membership)
	}
	return out, nil
}

// ReplicateMembership stores the changes of another control-plane machine, all or none.
func (s *Server) ReplicateMembership(ctx context.Context, by api.Caller, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	c, err := s.controlPlaneConfig(by)
	if err != nil {
		return nil, err
	}
	// An operator CA can also issue certificates with the role of a machine. Without this check,
	// the holder of the CA could remove a member without a second operator.
	ofMachineCA := func(ca *x509.Certificate) bool { return pki.Fingerprint(ca) == by.Issuer }
	if len(r.Revocations) > 0 && c.Approvals().Guards(config.CallsMembers) && !slices.ContainsFunc(machineCAs(c), ofMachineCA) {
		return nil, status.Error(codes.PermissionDenied, "removal refused: two operators must approve it (Machine.spec.trust.approvals), and an approved removal is accepted only from a machine with a certificate of the machine CA")
	}
	request := replicated{from: cmp.Or(by.Name, "a machine without a name"), membership: fromMembership(r.Membership)}
	if request.revocations, err = fromRemovals(r.Revocations); err != nil {
		return nil, err
	}
	for _, key := range r.Denied {
		if _, err := pki.ParseFingerprint(key); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	done, err := s.apply(c, request)
	if err != nil {
		return nil, err
	}
	s.requests.deny(r.Denied)
	return &api.ReplicateMembershipResponse{Ledger: done.ledger.ID, StoredTickets: storedTickets(done.ledger, request.membership)}, s.enforce(ctx, by, done.newRevocations)
}

// enforce enforces revocations that another control-plane machine has replicated.
func (s *Server) enforce(ctx context.Context, by api.Caller, added []trust.Revocation) error {
	if len(added) == 0 {
		return nil
	}
	for _, v := range added {
		s.deps.Event("trust", "config", fmt.Sprintf("%s is revoked: replicated by %s, done by %s", v, by.Name, v.By))
	}
	if err := s.deps.Enforce(context.WithoutCancel(ctx)); err != nil {
		return status.Errorf(codes.Internal, "it is stored, but not effective yet: %v", err)
	}
	return nil
}

// fromRemovals converts the revocations of removed machines from the API's form. Lineage is the
// serial number of a ticket. A revocation of a name spreads only by polls (sync.go).
func fromRemovals(all []*api.Revocation) (out []trust.Revocation, err error) {
	for _, v := range all {
		if v.Name != "" || v.Lineage == "" {
			return nil, status.Error(codes.InvalidArgument, "a replicated revocation must have the serial number of a ticket, and no name")
		}
		out = append(out, fromAPIRevocation(v))
	}
	return out, nil
}

// storedTickets returns the serials of the received tickets for which a ledger contains the ticket,
// or the member that joined with it. It adds the IDs of the received approvals that the ledger
// contains.
func storedTickets(l trust.Ledger, received trust.Membership) (out []string) {
	for _, serial := range ticketSerials(received) {
		if holds := l.PublicForTicket(serial); len(holds.Members)+len(holds.Tickets) > 0 {
			out = append(out, serial)
		}
	}
	for _, a := range received.Approvals {
		if l.HasApproval(a.ID()) {
			out = append(out, a.ID())
		}
	}
	return out
}

// ticketSerials returns the serials of the tickets in a membership.
func ticketSerials(r trust.Membership) []string {
	var out []string
	for _, t := range r.Tickets {
		out = append(out, t.Serial)
	}
	for _, m := range r.Members {
		out = append(out, m.Ticket)
	}
	return out
}

// Vote returns the vote of this machine on a candidate. The caller is the control-plane machine
// that the candidate has called. The vote is stored before the answer.
func (s *Server) Vote(by api.Caller, r *api.VoteRequest) (*api.VoteResponse, error) {
	c, err := s.controlPlaneConfig(by)
	if err != nil {
		return nil, err
	}
	if r.Candidate == nil {
		return nil, status.Error(codes.InvalidArgument, "no machine is named")
	}
	m := fromMember(r.Candidate)
	if err := m.Check(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	done, err := s.apply(c, voteRequested{m, r.HasCertificate, fromMembership(r.Membership)})
	if err != nil {
		return nil, err
	}
	out := &api.VoteResponse{Ledger: done.ledger.ID, Bindings: toMembership(done.ledger.PublicForTicket(m.Ticket)).Bindings}
	if done.rejection != nil {
		out.RejectionReason = done.rejection.Error()
	}
	return out, nil
}
