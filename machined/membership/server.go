package membership

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine admits machines into the cluster and removes them
// (docs/decisions/0028-joining.md). trust.Ledger decides which machine may join; quorum.go contains
// the votes of several control-plane machines; worker.go is the side of the worker.

// memberTTL is the TTL of a member's certificates. A member renews them after two thirds of this
// time, so a machine that was off for less than a third needs no new ticket. A removed machine
// cannot use its certificates for this time, because they are revoked.
const memberTTL = 90 * 24 * time.Hour

// Server answers the calls of operators, workers and other control-plane machines.
type Server struct {
	deps     *Deps
	ledger   *Ledger
	quorum   quorum
	requests *Requests
	nodeGC   *NodeGC

	renewals, joins *rate.Limiter // limits of renewals by operators, and of joins of machines
	// limit per ticket and per lineage: a single caller must not exhaust the limits of the others
	perKey limits.Rates
}

// newServer returns the server with its limits: each renewal costs a signature and a flush of
// STATE, and every caller may request a renewal.
func newServer(d *Deps, q quorum, requests *Requests, gc *NodeGC) *Server {
	return &Server{
		deps: d, ledger: q.ledger, quorum: q, requests: requests, nodeGC: gc,
		renewals: rate.NewLimiter(1, 60), joins: rate.NewLimiter(1, 60), perKey: limits.Rates{Interval: 10 * time.Second, Burst: 10},
	}
}

// addresses returns the addresses of this machine that other machines can reach.
func (s *Server) addresses(c *config.Config) []string {
	now, _ := s.deps.Addresses.Get()
	return addressStrings(now.reachable(c))
}

// issuingConfig returns the configuration of a machine that can admit others, or a status error.
func (s *Server) issuingConfig() (*config.Config, error) {
	switch c := s.deps.config(); {
	case c == nil || c.Cluster == nil:
		return nil, status.Error(codes.FailedPrecondition, "this machine belongs to no cluster; ask a control-plane machine")
	case c.Machine.Spec.Role != config.RoleControlPlane:
		return nil, status.Error(codes.FailedPrecondition, "this machine holds no key of the cluster; ask a control-plane machine")
	case c.Cluster.Spec.PKI.Client.Key.IsZero():
		return nil, status.Error(codes.FailedPrecondition, "this machine issues no tickets: its configuration has no client CA with its key (Cluster.spec.pki.client); `orlopctl gen secrets --client-ca` makes one")
	default:
		return c, nil
	}
}

// facts are the facts for a decision under a configuration.
func (s *Server) facts(c *config.Config) facts {
	return facts{config: c, addresses: s.deps.ownAddresses(), session: &s.ledger.session, now: s.deps.Now()}
}

// apply decides a request and stores the resulting ledger.
func (s *Server) apply(c *config.Config, r request) (out outcome, err error) {
	err = s.ledger.update(func(l trust.Ledger) (next trust.Ledger, err error) {
		out, err = decide(l, r, s.facts(c))
		return out.ledger, err
	})
	return out, err
}

// check returns the result of apply, and changes nothing.
func (s *Server) check(c *config.Config, r request) (out outcome, err error) {
	err = s.ledger.check(func(l trust.Ledger) (next trust.Ledger, err error) {
		out, err = decide(l, r, s.facts(c))
		return out.ledger, err
	})
	return out, err
}

// ListMembers returns the members and the open tickets.
func (s *Server) ListMembers() *api.ListMembersResponse {
	known := s.ledger.Current()
	out := &api.ListMembersResponse{}
	out.Members = toMembership(known.Public()).Members
	for _, t := range known.OpenTickets(s.deps.Now()) {
		out.Tickets = append(out.Tickets, &api.Ticket{Serial: t.Serial, Name: t.Name, Expires: timestamppb.New(t.Expires), By: t.By})
	}
	return out
}

// RemoveMember revokes the certificates of a member. Before it returns, the revocation is effective
// on this machine and on the other control-plane machines that answer. The Node object can stay
// longer, and Kubernetes expects the machine as long as the Node exists. RemoveMember deletes the
// Node at once if the API server answers, and nodegc.go checks for the Node for some time
// afterwards. A caller can repeat the call for a removed machine. The work continues if the caller
// disconnects.
func (s *Server) RemoveMember(ctx context.Context, by api.Caller, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	vs := s.quorum.voters(c)
	_, failed := s.quorum.sync(ctx, vs.others, len(vs.others)) // it may have joined just now
	done, err := s.apply(c, removed{name: r.Name, by: by.Subject, unreached: strings.Join(failed, "; ")})
	if err != nil {
		return nil, err
	}
	enforced := s.deps.Enforce(ctx)
	out := &api.RemoveMemberResponse{Tickets: done.tickets}
	_, out.Unreached, _ = s.quorum.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Revocations: revocationsOf(done)}, "", len(vs.others))
	s.nodeGC.restart(out.Tickets)
	if _, err := s.nodeGC.Delete(ctx, c, []string{r.Name}); err != nil {
		out.NodeError = err.Error()
	}
	if enforced != nil {
		return nil, status.Errorf(codes.Internal, "it is stored, but not effective yet: %v; it is retried within %s", enforced, ResyncInterval)
	}
	s.deps.Event("cluster", "operation", "removed machine "+r.Name)
	return out, nil
}

// revocationsOf returns the revocations of a removal.
func revocationsOf(done outcome) (out []*api.Revocation) {
	for _, v := range done.ledger.Revoked {
		if slices.Contains(done.tickets, v.Lineage) {
			out = append(out, toAPIRevocation(v))
		}
	}
	return out
}
