package membership

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How the control-plane machines agree on the members of their cluster, without Kubernetes and
// without etcd (docs/decisions/0063-membership-votes.md). Each machine has a ledger (trust.Ledger)
// with the members, the unused join tickets and the revocations. A join ticket, short ticket, is
// the client certificate with which a machine can join. trust.Ledger decides each vote.
//
//  1. Each machine polls the others every few seconds for the revocations (sync.go) and the
//     membership, and merges both into its own ledger. The answer also contains the name of the
//     polled machine. From then on the name is reserved: no worker can join with it.
//  2. A machine issues a ticket after a majority of the machines have stored the ticket
//     (ReplicateMembership).
//  3. A machine with a ticket is admitted if a majority votes that no other key presented the
//     ticket (Vote). It gets certificates after a majority of the ledgers contain it as a member
//     (ReplicateMembership). A member that renews its certificates needs the votes of a majority
//     too.
//  4. A machine that removes a member replicates the removal to the others at once, and reports the
//     machines that did not answer. A machine that did not answer gets the removal by a later sync.
//
// A control plane of one machine is its own quorum.

// voters are the configured control-plane machines.
type voters struct {
	others []netip.Addr
	self   bool // this machine is a voter
}

// voters returns the voters of a control-plane machine with a cluster configuration. Peers.Others
// leaves out the address of this machine, so this machine is a voter if the result of Others is
// shorter than Cluster.spec.controlPlanes. If controlPlanes is empty, this machine is the only
// voter. The caller passes the configuration, so that a call uses the same configuration from its
// beginning to its end.
func (q quorum) voters(c *config.Config) voters {
	vs := voters{others: q.peers.Others(c)}
	vs.self = len(c.Cluster.Spec.ControlPlanes) == 0 || len(vs.others) < len(c.Cluster.Spec.ControlPlanes)
	return vs
}

// selfVotes returns 1 if this machine is a voter, else 0.
func (vs voters) selfVotes() int {
	if vs.self {
		return 1
	}
	return 0
}

func (vs voters) all() int { return len(vs.others) + vs.selfVotes() }

func (vs voters) majority() int { return trust.Majority(vs.all()) }

// needed returns how many of the other voters must answer for a majority. The vote of this machine,
// if it is a voter, is already counted.
func (vs voters) needed() int { return vs.majority() - vs.selfVotes() }

// check returns the error of noQuorum if fewer of the other voters have answered than needed
// returns.
func (vs voters) check(answered int, did string, failed []string) error {
	if answered < vs.needed() {
		return noQuorum(answered+vs.selfVotes(), vs, did, failed)
	}
	return nil
}

// quorum reads and changes the ledgers of the other control-plane machines.
type quorum struct {
	deps   *Deps
	ledger *Ledger
	peers  *Peers
}

// sync polls the other control-plane machines until enough of them have answered. It returns the
// IDs of their ledgers by the address of the machine, and the errors of the failed calls.
func (q quorum) sync(ctx context.Context, others []netip.Addr, enough int) (ledgers map[netip.Addr]string, failed []string) {
	ledgers = map[netip.Addr]string{}
	callAll(ctx, q.peers, others, q.syncWith, func(a peerAnswer[string]) bool {
		if a.err != nil {
			failed = append(failed, peerError(a.from, a.err))
		} else {
			ledgers[a.from] = a.answer
		}
		return len(ledgers) >= enough
	})
	return ledgers, failed
}

// syncWith polls another machine, and returns the ID of its ledger.
func (q quorum) syncWith(ctx context.Context, c *client.Client) (string, error) {
	return q.ledger.syncMembership(func(r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
		return c.Cluster.GetMembership(ctx, r)
	})
}

// vote sends r, the request to vote for a machine, to the other control-plane machines until enough
// voters have voted yes. v collects the answers; it counts the votes by ledger ID.
func (q quorum) vote(ctx context.Context, others []netip.Addr, r *api.VoteRequest, v *votes, enough int) {
	request := func(ctx context.Context, c *client.Client) (*api.VoteResponse, error) { return c.Cluster.Vote(ctx, r) }
	callAll(ctx, q.peers, others, request, func(a peerAnswer[*api.VoteResponse]) bool {
		v.add(a)
		return len(v.ledgers) >= enough
	})
}

// replicate sends r to the other control-plane machines until enough of them have stored it. ticket
// is the serial number of a join ticket or the ID of an approval. A machine has stored r if its
// answer lists ticket. Its ledger then contains the ticket, the member that joined with the ticket,
// or the approval. If ticket is empty, every answer without an error is a success. stored are the
// addresses of the machines that have stored r, and failed are the errors of the other machines.
// refused is the error of a machine that rejects r; nil if no machine rejects it.
func (q quorum) replicate(ctx context.Context, others []netip.Addr, r *api.ReplicateMembershipRequest, ticket string, enough int) (stored, failed []string, refused error) {
	callAll(ctx, q.peers, others, func(ctx context.Context, c *client.Client) (*api.ReplicateMembershipResponse, error) {
		return c.Cluster.ReplicateMembership(ctx, r)
	}, func(a peerAnswer[*api.ReplicateMembershipResponse]) bool {
		switch {
		case status.Code(a.err) == codes.FailedPrecondition:
			refused = errors.New(peerError(a.from, a.err))
			failed = append(failed, refused.Error())
		case a.err != nil:
			failed = append(failed, peerError(a.from, a.err))
		case ticket == "" || slices.Contains(a.answer.StoredTickets, ticket):
			stored = append(stored, a.from.String())
		default:
			// The machine has merged r without the ticket. A ledger drops a ticket of r only if the
			// ticket is revoked. An older version knows no approvals.
			failed = append(failed, fmt.Sprintf("%s: the ticket was revoked there, or its version does not know it", a.from))
		}
		return len(stored) >= enough
	})
	return stored, failed, refused
}

// noQuorum returns the error for the case that fewer control-plane machines than a majority have
// answered. did completes the sentence "1 of 3 control-plane machines …". failed contains the
// errors of the other machines.
func noQuorum(answered int, vs voters, did string, failed []string) error {
	return status.Errorf(codes.Unavailable, "%d of %d control-plane machines %s; quorum: %d; try again when more of them answer (%s)", answered, vs.all(), did, vs.majority(), strings.Join(failed, "; "))
}
