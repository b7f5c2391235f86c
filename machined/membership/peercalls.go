package membership

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

// controlPlaneConfig returns the configuration for a call between control-plane machines.
func (s *Server) controlPlaneConfig(by Caller) (*config.Config, error) {
	if err := by.requireControlPlane(); err != nil {
		return nil, err
	}
	c := s.deps.config()
	if !IsControlPlane(c) {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not a control-plane machine")
	}
	return c, nil
}

func (s *Server) GetMembership(by Caller, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	c, err := s.controlPlaneConfig(by)
	if err != nil {
		return nil, err
	}
	s.ledger.Lock()
	current, err := s.ledger.withIDLocked()
	s.ledger.Unlock()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.GetMembershipResponse{Ledger: current.ID, Machine: c.Machine.Metadata.Name}
	if membership := current.Public(); !slices.Equal(membership.Digest(), r.Digest) {
		out.Membership = toMembership(membership)
	}
	return out, nil
}

func (s *Server) ReplicateMembership(ctx context.Context, by Caller, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	c, err := s.controlPlaneConfig(by)
	if err != nil {
		return nil, err
	}
	roll, known := fromMembership(r.Membership), s.ledger.Current()
	for _, t := range roll.Tickets {
		if reservedName(c, known, t.Name) {
			return nil, status.Errorf(codes.FailedPrecondition, "machine %s: cannot create ticket: the control plane has this name", t.Name)
		}
	}
	if err := s.requests.deny(r.Denied); err != nil {
		return nil, err
	}
	var removed []trust.Revocation
	for _, v := range r.Revocations {
		if v.Name != "" || v.Lineage == "" { // names are replicated only by the poll of a peer
			return nil, status.Error(codes.InvalidArgument, "a removal must name a ticket")
		}
		removed = append(removed, fromAPIRevocation(v))
	}
	out := &api.ReplicateMembershipResponse{}
	var news []trust.Revocation
	err = s.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		var err error
		if b, news, err = b.MergeRevocations(removed, s.deps.Now()); err != nil {
			return b, fmt.Errorf("replicated by %s: %w", cmp.Or(by.Name, "a machine without a name"), err)
		}
		if b, _, err = b.MergeMembership(roll, &s.ledger.session, s.deps.Now()); err != nil {
			return b, err
		}
		out.Ledger = b.ID
		for _, serial := range ticketSerials(roll) {
			if holds := b.PublicForTicket(serial); len(holds.Members)+len(holds.Tickets) > 0 {
				out.StoredTickets = append(out.StoredTickets, serial)
			}
		}
		return b, nil
	})
	if err != nil || len(news) == 0 {
		return out, err
	}
	for _, v := range news {
		s.deps.Event("trust", "config", fmt.Sprintf("%s is revoked: replicated by %s, done by %s", v, by.Name, v.By))
	}
	if err := s.deps.Enforce(context.WithoutCancel(ctx)); err != nil {
		return nil, status.Errorf(codes.Internal, "it is stored, but not effective yet: %v", err)
	}
	return out, nil
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

func (s *Server) Vote(by Caller, r *api.VoteRequest) (*api.VoteResponse, error) {
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
	addr, err := netip.ParseAddr(m.Address)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	rejection := checkCallerAddress(c, s.deps.own(), addr)
	if rejection == nil && reservedName(c, s.ledger.Current(), m.Name) {
		rejection = fmt.Errorf("machine %s: cannot join: the control plane has this name", m.Name)
	}
	out := &api.VoteResponse{}
	err = s.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, _, err := b.MergeMembership(fromMembership(r.Membership), &s.ledger.session, s.deps.Now())
		if err != nil {
			return b, err
		}
		if rejection == nil {
			b, rejection = b.Vote(m, r.HasCertificate, &s.ledger.session, s.deps.Now())
		}
		out.Ledger, out.Bindings = b.ID, toMembership(b.PublicForTicket(m.Ticket)).Bindings
		return b, nil
	})
	if rejection != nil {
		out.RejectionReason = rejection.Error()
	}
	return out, err
}
