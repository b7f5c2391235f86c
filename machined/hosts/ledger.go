package hosts

import (
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/trust"
)

// MemberKeys returns the fingerprints of the members of a cluster (RegisterDeps.Members).
func MemberKeys(of trust.Membership) (keys []string) {
	for _, member := range of.Members {
		keys = append(keys, member.Key)
	}
	return keys
}

// Names returns the names of the members of a cluster, and of the machines with an open ticket to
// join (RegisterDeps.Names).
func Names(of trust.Membership, now time.Time) (names []string) {
	for _, member := range of.Members {
		names = append(names, member.Name)
	}
	for _, ticket := range of.OpenTickets(now) {
		names = append(names, ticket.Name)
	}
	return names
}

// Known reports whether a machine with this name and key is a member, or a ticket for its name is
// open (ClaimsDeps.Known).
func Known(in trust.Membership, m claim.Member, now time.Time) bool {
	return in.NameInUse(m.Name, now) && (in.HasKey(m.Key) || !in.HasMember(m.Name))
}

// Pending returns the machines of an answer that request to join (ClaimsDeps.Pending).
func Pending(answer *api.ListPendingResponse) (all []claim.Member) {
	for _, p := range answer.GetMachines() {
		all = append(all, claim.Member{Name: p.Name, Key: p.Fingerprint})
	}
	return all
}
