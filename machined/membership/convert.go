package membership

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/trust"
)

// toMembership and fromMembership convert a membership to and from the API's form.
func toMembership(r trust.Membership) *api.Membership {
	out := &api.Membership{}
	for _, m := range r.Members {
		out.Members = append(out.Members, toMember(m))
	}
	for _, t := range r.Tickets {
		out.Tickets = append(out.Tickets, &api.Ticket{
			Serial: t.Serial, Name: t.Name, Expires: timestamppb.New(t.Expires), By: t.By, At: timestamppb.New(t.At), Voters: t.Voters, Quorum: int32(t.Quorum),
		})
	}
	for _, b := range r.Bindings {
		out.Bindings = append(out.Bindings, &api.TicketBinding{Ticket: b.Ticket, Voter: b.Voter, Key: b.Key})
	}
	for _, a := range r.Approvals {
		out.Approvals = append(out.Approvals, &api.RuleApproval{
			Serial: a.Serial, Uuid: a.UUID, Key: a.Key, Rule: a.Rule, Maximum: int32(a.Maximum), Signed: timestamppb.New(a.Signed), At: timestamppb.New(a.At),
		})
	}
	return out
}

func fromMembership(r *api.Membership) trust.Membership {
	var out trust.Membership
	for _, m := range r.GetMembers() {
		out.Members = append(out.Members, fromMember(m))
	}
	for _, t := range r.GetTickets() {
		out.Tickets = append(out.Tickets, trust.Ticket{
			Serial: t.Serial, Name: t.Name, At: t.At.AsTime(), Expires: t.Expires.AsTime(), By: t.By, Voters: t.Voters, Quorum: int(t.Quorum),
		})
	}
	out.Bindings = fromBindings(r.GetBindings())
	for _, a := range r.GetApprovals() {
		out.Approvals = append(out.Approvals, trust.Approval{
			Serial: a.Serial, UUID: a.Uuid, Key: a.Key, Rule: a.Rule, Maximum: int(a.Maximum), Signed: a.Signed.AsTime(), At: a.At.AsTime(),
		})
	}
	return out
}

// fromBindings converts ticket bindings from the API's form.
func fromBindings(bindings []*api.TicketBinding) []trust.TicketBinding {
	var out []trust.TicketBinding
	for _, b := range bindings {
		out = append(out, trust.TicketBinding{Ticket: b.Ticket, Voter: b.Voter, Key: b.Key})
	}
	return out
}

// toMember and fromMember convert a member to and from the API's form.
func toMember(m trust.Member) *api.Member {
	return &api.Member{
		Name: m.Name, Ticket: m.Ticket, Fingerprint: m.Key, Address: m.Address, Generation: m.Generation,
		Joined: timestamppb.New(m.Joined), Renewed: timestamppb.New(m.Renewed), Expires: timestamppb.New(m.Expires),
	}
}

func fromMember(m *api.Member) trust.Member {
	return trust.Member{
		Name: m.Name, Ticket: m.Ticket, Key: m.Fingerprint, Address: m.Address, Generation: m.Generation,
		Joined: m.Joined.AsTime(), Renewed: m.Renewed.AsTime(), Expires: m.Expires.AsTime(),
	}
}

// toAPIRevocation converts a revocation to the API's form.
func toAPIRevocation(r trust.Revocation) *api.Revocation {
	return &api.Revocation{Lineage: r.Lineage, Name: r.Name, Machine: r.Machine, At: timestamppb.New(r.At), By: r.By, Generation: r.Generation, Restored: r.Restored}
}

// fromAPIRevocation converts a revocation from the API's form.
func fromAPIRevocation(r *api.Revocation) trust.Revocation {
	return trust.Revocation{Lineage: r.Lineage, Name: r.Name, Machine: r.Machine, At: r.At.AsTime(), By: r.By, Generation: r.Generation, Restored: r.Restored}
}
