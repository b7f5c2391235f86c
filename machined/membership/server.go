package membership

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodecerts"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine admits machines into the cluster and removes them
// (docs/decisions/0028-joining.md). trust.Ledger decides which machine may join; quorum.go contains
// the votes of several control-plane machines; worker.go is the side of the worker.

// memberTTL is the TTL of a member's certificates. A member renews them after two thirds of it, so
// a machine that was off for less than a third needs no new ticket. A removed machine cannot use
// its certificates that long, because they are revoked.
const memberTTL = 90 * 24 * time.Hour

// Server answers the calls of operators, workers and other control-plane machines.
type Server struct {
	deps     *Deps
	ledger   *Ledger
	quorum   quorum
	requests *Requests
	nodeGC   *NodeGC

	renewals, joins *rate.Limiter // limits of renewals by operators, and of joins of machines
	// limit per ticket and per lineage, so that no caller exhausts the limits of all others
	perKey limits.Rates
}

// newServer limits the calls: each renewal costs a signature and a flush of STATE, and every caller
// may request it.
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

// authority parses a CA of the cluster.
func authority(pair config.CertKey) (*pki.CA, error) {
	return pki.ParseCA([]byte(pair.Cert.PEM()), []byte(pair.Key.PEM()))
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

func (s *Server) CreateTicket(ctx context.Context, by Caller, r *api.CreateTicketRequest) (*api.CreateTicketResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	if reservedName(c, s.ledger.Current(), r.Name) {
		return nil, status.Errorf(codes.InvalidArgument, "machine %s: cannot create ticket: the control plane has this name", r.Name)
	}
	documents := WorkerDocuments(c, r.Name)
	if err := config.Check(documents).Err(); err != nil { // usually an invalid name
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A Node of that name can still exist, with the pods of the former machine: their tokens would
	// be valid as long as it exists.
	removed := s.ledger.Current().RemovedSince(s.deps.Now().Add(-memberTTL), s.deps.Now())
	if slices.ContainsFunc(removed, func(g trust.RemovedMachine) bool { return g.Name == r.Name }) {
		if _, err := s.nodeGC.Delete(ctx, c, []string{r.Name}); err != nil {
			return nil, status.Errorf(codes.Unavailable, "machine %s: cannot create ticket yet: a machine of this name was removed, and its Node may still exist, with the tokens of its pods: %v; try again", r.Name, err)
		}
	}
	if len(r.Csr) == 0 { // the machine will send a join request
		if _, err := s.requests.config(); err != nil {
			return nil, err
		}
		return &api.CreateTicketResponse{Documents: config.Marshal(documents), ControlPlanes: s.addresses(c)}, nil
	}
	ttl, err := trust.TicketTTL(r.Ttl.AsDuration())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	addresses := s.addresses(c)
	ca, err := authority(c.Cluster.Spec.PKI.Client)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "Cluster.spec.pki.client: %v", err)
	}
	vs := s.quorum.voters(c)
	ledgers, unreached := s.quorum.sync(ctx, vs.others, len(vs.others))
	var told []netip.Addr
	var voters []string
	for addr, id := range ledgers {
		if !slices.Contains(voters, id) {
			told, voters = append(told, addr), append(voters, id)
		}
	}
	if len(voters)+vs.selfVotes() < vs.majority() {
		return nil, noQuorum(len(voters)+vs.selfVotes(), vs, "store the ticket", unreached)
	}
	leaf, err := ca.Issue(pki.Spec{CN: r.Name, O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: ttl, Backdate: pki.CABackdate, For: key})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	ticket := trust.Ticket{
		Serial: pki.Serial(leaf.Cert), Name: r.Name, At: s.deps.Now().UTC(), Expires: leaf.Cert.NotAfter, By: by.Subject,
		Voters: voters, Quorum: vs.majority(),
	}
	addTicket := func(b trust.Ledger) (trust.Ledger, error) {
		if vs.self {
			ticket.Voters = append(slices.Clone(voters), b.ID)
		}
		return b.AddTicket(ticket)
	}
	if err := s.ledger.check(addTicket); err != nil {
		return nil, err
	}
	stored, unreached, refused := s.quorum.replicate(ctx, told, &api.ReplicateMembershipRequest{Membership: toMembership(trust.Membership{Tickets: []trust.Ticket{ticket}})}, ticket.Serial, len(told))
	if refused != nil {
		return nil, status.Error(codes.FailedPrecondition, refused.Error())
	}
	if len(stored)+vs.selfVotes() < vs.majority() {
		return nil, noQuorum(len(stored)+vs.selfVotes(), vs, "store the ticket", unreached)
	}
	if err := s.ledger.update(addTicket); err != nil {
		return nil, err
	}
	answer := &api.CreateTicketResponse{Certificate: leaf.Cert.Raw, Documents: config.Marshal(documents), ControlPlanes: addresses}
	slices.Sort(stored)
	for _, address := range stored {
		if !slices.Contains(answer.ControlPlanes, address) && len(answer.ControlPlanes) < config.MaxFrom {
			answer.ControlPlanes = append(answer.ControlPlanes, address)
		}
	}
	return answer, nil
}

// WorkerDocuments is the configuration of a worker of this cluster, without any key. The client
// that holds the key of the ticket adds the ticket.
func WorkerDocuments(c *config.Config, name string) *config.Config {
	out := config.New(name, config.RoleWorker)
	if cas := c.Machine.Spec.Trust.OperatorCAs; len(cas) > 0 {
		out = out.WithOperatorCAs(cas...)
	}
	accepted := c.Cluster.Spec.PKI.Accepted
	pki := config.PKI{
		Kubernetes: config.CertKey{Cert: c.Cluster.Spec.PKI.Kubernetes.Cert},
		Machine:    config.CertKey{Cert: c.Cluster.Spec.PKI.Machine.Cert},
		Client:     config.CertKey{Cert: c.Cluster.Spec.PKI.Client.Cert},
	}
	pki.Accepted.Kubernetes, pki.Accepted.Machine, pki.Accepted.Client = accepted.Kubernetes, accepted.Machine, accepted.Client
	out = out.WithCluster(c.Cluster.Metadata.Name, c.Cluster.Spec.Endpoint, pki, config.EncryptionKey{})
	out.Cluster.Spec.Networks, out.Cluster.Spec.ControlPlanes = c.Cluster.Spec.Networks, c.Cluster.Spec.ControlPlanes
	out.Cluster.Spec.VirtualAddresses, out.Cluster.Spec.External = c.Cluster.Spec.VirtualAddresses, c.Cluster.Spec.External
	out.Cluster.Spec.DNS, out.Cluster.Spec.LocalVolumes = c.Cluster.Spec.DNS, c.Cluster.Spec.LocalVolumes
	out.Cluster.Spec.JoinRequests = c.Cluster.Spec.JoinRequests
	out.Cluster.Spec.PodCertificates = c.Cluster.Spec.PodCertificates
	out.Cluster.Spec.Kubernetes.MaxPods = c.Cluster.Spec.Kubernetes.MaxPods
	return out
}

// Join signs certificates for the holder of a ticket, and for a member with a valid certificate.
func (s *Server) Join(ctx context.Context, by Caller, r *api.JoinRequest) (*api.JoinResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	member := trust.Member{Name: by.Name, Renewed: s.deps.Now().UTC()}
	role := pki.RolePrefix + by.Role
	switch role {
	case pki.RoleJoin:
		member.Ticket = by.Serial
	case pki.RoleMachine:
		if member.Ticket = by.Ticket; member.Ticket == "" {
			return nil, status.Error(codes.FailedPrecondition, "this certificate has no ticket: it belongs to a control-plane machine, which issues its own")
		}
	default:
		return nil, status.Error(codes.FailedPrecondition, "only machines join: operators create a ticket (`orlopctl nodes add`)")
	}
	key, err := pki.ParseRequest(r.MachineCsr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Key = pki.KeyFingerprint(key)
	known := role == pki.RoleMachine
	if known && member.Key != by.Key { // this check needs no ledger
		return nil, status.Error(codes.FailedPrecondition, "a machine can renew its certificates only for its present key")
	}
	peer, err := netip.ParseAddrPort(by.Peer)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot read the caller's address: %v", err)
	}
	// The addresses that a machine claims are not trusted: they could be the addresses of any other
	// machine.
	addresses := []netip.Addr{peer.Addr().Unmap()}
	member.Address = addresses[0].String()
	if err := checkCallerAddress(c, s.deps.own(), addresses[0]); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	vote := func(b trust.Ledger) (trust.Ledger, error) {
		return b.Vote(member, known, &s.ledger.session, s.deps.Now())
	}
	// A rejected call costs no signature, and no caller can cause repeated writes of the ledger or
	// calls to the other voters.
	if err := s.ledger.check(vote); err != nil {
		return nil, err
	}
	if !s.perKey.Allow("ticket "+member.Ticket) || !s.joins.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are requested at present; try again")
	}
	vs := s.quorum.voters(c)
	bindings, votes, err := s.collectVotes(ctx, vs, member, known, vote)
	if err != nil {
		return nil, err
	}
	answer, expires, err := sign(c, member, addresses, key, r.NodeCsrs)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	member.Expires = expires
	if err := s.storeMember(ctx, vs, member, known, bindings, votes); err != nil {
		return nil, err
	}
	s.deps.Event("cluster", "operation", fmt.Sprintf("machine %s at %s has its certificates until %s", member.Name, member.Address, expires.Format(time.RFC3339)))
	return answer, nil
}

// collectVotes records in this ledger that a machine wants to join, and requests votes from the
// others until a quorum votes for it. It returns their ticket bindings and the number of votes.
func (s *Server) collectVotes(ctx context.Context, vs voters, member trust.Member, known bool, vote func(trust.Ledger) (trust.Ledger, error)) (bindings []trust.TicketBinding, votes int, err error) {
	used := false
	readUsed := func(b trust.Ledger) (trust.Ledger, error) {
		used = b.TicketUsed(member.Ticket)
		return b, nil
	}
	if err := s.ledger.check(readUsed); err != nil {
		return nil, 0, err
	}
	if known && !used { // other voters can know it
		synced, unreached := s.quorum.sync(ctx, vs.others, vs.majority()-vs.selfVotes())
		if len(synced)+vs.selfVotes() < vs.majority() {
			return nil, 0, noQuorum(len(synced)+vs.selfVotes(), vs, "answered whether they know the machine", unreached)
		}
	}
	var public trust.Membership
	ledgers := map[string]bool{} // IDs of the ledgers that voted for it
	err = s.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, err := vote(b)
		public, used = b.PublicForTicket(member.Ticket), b.TicketUsed(member.Ticket)
		if vs.self {
			ledgers[b.ID] = true
		}
		return b, err
	})
	if err != nil {
		return nil, 0, err
	}
	needed := vs.majority()
	// the ticket holds the quorum of the time of its issue
	if !known && !used && len(public.Tickets) == 1 {
		needed = public.Tickets[0].Quorum
	}
	r := &api.VoteRequest{Membership: toMembership(public), Candidate: toMember(member), HasCertificate: known}
	var against []string
	if len(ledgers) < needed {
		callAll(ctx, s.quorum.peers, vs.others, func(ctx context.Context, c *client.Client) (*api.VoteResponse, error) {
			return c.Cluster.Vote(ctx, r)
		}, func(v peerAnswer[*api.VoteResponse]) bool {
			switch {
			case v.err != nil:
				against = append(against, peerError(v.from, v.err))
			case v.answer.RejectionReason != "":
				bindings = append(bindings, fromBindings(v.answer.Bindings)...)
				against = append(against, fmt.Sprintf("%s: %s", v.from, v.answer.RejectionReason))
			default:
				bindings = append(bindings, fromBindings(v.answer.Bindings)...)
				ledgers[v.answer.Ledger] = true
			}
			return len(ledgers) >= needed
		})
	}
	if votes = len(ledgers); votes >= needed {
		return bindings, votes, nil
	}
	// The reason for which no machine can join with this ticket says more than the number of votes.
	err = s.ledger.check(func(b trust.Ledger) (trust.Ledger, error) {
		return b.AdmitWithVotes(member, known, bindings, votes, needed, &s.ledger.session)
	})
	if err != nil && status.Code(err) != codes.Unavailable {
		return nil, 0, err
	}
	return nil, 0, noQuorum(votes, vs, "voted for "+member.Name, against)
}

// storeMember writes a member into this ledger and replicates it. When it returns, a majority of
// the ledgers contain the member. That is before the machine receives the certificates, so that
// they can be revoked, and so that no other machine gets the name or the address.
func (s *Server) storeMember(ctx context.Context, vs voters, member trust.Member, known bool, bindings []trust.TicketBinding, votes int) error {
	var changed trust.Membership
	err := s.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, err := b.AdmitWithVotes(member, known, bindings, votes, vs.majority(), &s.ledger.session)
		changed = b.PublicForTicket(member.Ticket)
		return b, err
	})
	if err != nil {
		return err
	}
	stored, unreached, _ := s.quorum.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Membership: toMembership(changed)}, member.Ticket, vs.majority()-vs.selfVotes())
	if len(stored)+vs.selfVotes() < vs.majority() {
		return noQuorum(len(stored)+vs.selfVotes(), vs, "hold "+member.Name+" in their ledgers", unreached)
	}
	// An operator can have removed it meanwhile.
	return s.ledger.check(func(b trust.Ledger) (trust.Ledger, error) {
		if !b.TicketUsed(member.Ticket) {
			return b, fmt.Errorf("machine %s: it was removed while it joined; create another ticket", member.Name)
		}
		return b, nil
	})
}

// sign issues all certificates of a member.
func sign(c *config.Config, member trust.Member, addresses []netip.Addr, key *ecdsa.PublicKey, requests map[string][]byte) (*api.JoinResponse, time.Time, error) {
	var expires time.Time
	issue := func(pair config.CertKey, spec pki.Spec, key *ecdsa.PublicKey) ([]byte, error) {
		ca, err := authority(pair)
		if err != nil {
			return nil, err
		}
		spec.TTL, spec.Backdate, spec.For, spec.Ticket = memberTTL, nodecerts.Backdate, key, member.Ticket
		leaf, err := ca.Issue(spec)
		if err != nil {
			return nil, err
		}
		if expires.IsZero() || leaf.Cert.NotAfter.Before(expires) {
			expires = leaf.Cert.NotAfter
		}
		return leaf.Cert.Raw, nil
	}
	out := &api.JoinResponse{NodeCertificates: map[string][]byte{}}
	var err error
	if out.MachineCertificate, err = issue(c.Cluster.Spec.PKI.Machine, nodecerts.MachineLeaf(member.Name, addresses), key); err != nil {
		return nil, expires, err
	}
	for _, l := range nodecerts.NodeLeaves(member.Name, addresses) {
		key, err := pki.ParseRequest(requests[l.Cert])
		if err != nil {
			return nil, expires, fmt.Errorf("%s: %w", l.Cert, err)
		}
		if out.NodeCertificates[l.Cert], err = issue(c.Cluster.Spec.PKI.Kubernetes, l.Spec, key); err != nil {
			return nil, expires, err
		}
	}
	return out, expires, nil
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

// RemoveMember revokes a member here and on the other control-plane machines that answer before it
// returns. The Node object is the exception: Kubernetes expects the machine as long as the Node
// exists. Remove deletes it at once if the API server answers, and nodegc.go looks for it for some
// time afterwards. A caller can repeat the call for a removed machine. The work continues if the
// caller disconnects.
func (s *Server) RemoveMember(ctx context.Context, by Caller, r *api.RemoveMemberRequest) (*api.RemoveMemberResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	vs := s.quorum.voters(c)
	// it may have joined a moment ago
	_, unreached := s.quorum.sync(ctx, vs.others, len(vs.others))
	out := &api.RemoveMemberResponse{}
	var removed []*api.Revocation
	err = s.ledger.update(func(b trust.Ledger) (next trust.Ledger, err error) {
		if next, out.Tickets, err = b.Remove(r.Name, s.deps.Now().UTC(), by.Subject); err != nil && len(unreached) > 0 {
			return next, fmt.Errorf("%w; some control-plane machines do not answer, and may know it (%s)", err, strings.Join(unreached, "; "))
		}
		for _, v := range next.Revoked {
			if slices.Contains(out.Tickets, v.Lineage) {
				removed = append(removed, toAPIRevocation(v))
			}
		}
		return next, err
	})
	if err != nil {
		return nil, err
	}
	enforced := s.deps.Enforce(ctx)
	_, out.Unreached, _ = s.quorum.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Revocations: removed}, "", len(vs.others))
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
