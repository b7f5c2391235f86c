package membership

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a control-plane machine answers a machine that joins or renews
// (docs/decisions/0028-joining.md):
//
//  1. It votes for the machine itself, and stores the vote.
//  2. It requests the votes of the other voters until a quorum has voted for the machine.
//  3. It signs the certificates.
//  4. More than half of the ledgers store the machine, and only then it gets the certificates.

// candidate is a machine that joins or renews, as its call shows it.
type candidate struct {
	member trust.Member
	// the machine presented a certificate of a member, not a ticket
	hasCertificate bool
	key            *ecdsa.PublicKey
	nodeKeys       map[string]*ecdsa.PublicKey // of the node's certificates
	address        netip.Addr
}

// newCandidate returns the machine that makes a call. It uses the source address of the call, and
// not the addresses that a machine claims, which could be the addresses of any other machine.
func newCandidate(by api.Caller, csr []byte, now time.Time) (candidate, error) {
	m := candidate{member: trust.Member{Name: by.Name, Renewed: now.UTC()}}
	switch pki.RolePrefix + by.Role {
	case pki.RoleJoin:
		m.member.Ticket = by.Serial
	case pki.RoleMachine:
		if m.member.Ticket, m.hasCertificate = by.Ticket, true; by.Ticket == "" {
			return m, status.Error(codes.FailedPrecondition, "this certificate has no ticket: it belongs to a control-plane machine, which issues its own")
		}
	default:
		return m, status.Error(codes.FailedPrecondition, "only machines join: operators create a ticket (`orlopctl nodes add`)")
	}
	var err error
	if m.key, err = pki.ParseRequest(csr); err != nil {
		return m, status.Error(codes.InvalidArgument, err.Error())
	}
	m.member.Key = pki.KeyFingerprint(m.key)
	if m.hasCertificate && m.member.Key != by.Key { // this check needs no ledger
		return m, status.Error(codes.FailedPrecondition, "a machine can renew its certificates only for its present key")
	}
	peer, err := netip.ParseAddrPort(by.Peer)
	if err != nil {
		return m, status.Errorf(codes.Internal, "cannot read the caller's address: %v", err)
	}
	m.address = peer.Addr().Unmap()
	m.member.Address = m.address.String()
	return m, nil
}

// parseNodeKeys reads the CSRs for the certificates of the node.
func (m *candidate) parseNodeKeys(requests map[string][]byte) error {
	m.nodeKeys = map[string]*ecdsa.PublicKey{}
	for _, l := range nodespec.NodeLeaves(m.member.Name, []netip.Addr{m.address}) {
		key, err := pki.ParseRequest(requests[l.Cert])
		if err != nil {
			return fmt.Errorf("%s: %w", l.Cert, err)
		}
		m.nodeKeys[l.Cert] = key
	}
	return nil
}

// Join signs certificates for the holder of a ticket, and for a member with a valid certificate.
func (s *Server) Join(ctx context.Context, by api.Caller, r *api.JoinRequest) (*api.JoinResponse, error) {
	c, err := s.issuingConfig()
	if err != nil {
		return nil, err
	}
	m, err := newCandidate(by, r.MachineCsr, s.deps.Now())
	if err != nil {
		return nil, err
	}
	// checked before this machine binds the ticket to the key
	if err := m.parseNodeKeys(r.NodeCsrs); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// A rejected call costs no signature, and no caller can cause repeated writes of the ledger or
	// calls to the other voters.
	checked, err := s.check(c, presented{m.member, m.hasCertificate})
	if err != nil {
		return nil, err
	}
	if !s.perKey.Allow("ticket "+m.member.Ticket) || !s.joins.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "too many certificates are requested at present; try again")
	}
	vs := s.quorum.voters(c)
	// other voters may have the member
	if m.hasCertificate && !checked.ledger.TicketUsed(m.member.Ticket) {
		if err := s.syncFor(ctx, vs); err != nil {
			return nil, err
		}
	}
	v, err := s.collectVotes(ctx, c, vs, m)
	if err != nil {
		return nil, err
	}
	answer, expires, err := sign(c, m)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	m.member.Expires = expires
	if err := s.storeMember(ctx, c, vs, m, v); err != nil {
		return nil, err
	}
	s.deps.Event("cluster", "operation", fmt.Sprintf("machine %s at %s has its certificates until %s", m.member.Name, m.member.Address, expires.Format(time.RFC3339)))
	return answer, nil
}

// syncFor syncs with a quorum about a member that this ledger does not know.
func (s *Server) syncFor(ctx context.Context, vs voters) error {
	synced, failed := s.quorum.sync(ctx, vs.others, vs.needed())
	return vs.check(len(synced), "answered whether they know the machine", failed)
}

// votes are the collected votes for a machine.
type votes struct {
	ledgers  map[string]bool       // IDs of the ledgers that voted for the machine
	bindings []trust.TicketBinding // bindings of the other voters
	against  []string              // reasons and errors of the other voters
}

// add adds the answer of another voter.
func (v *votes) add(a peerAnswer[*api.VoteResponse]) {
	if a.err != nil {
		v.against = append(v.against, peerError(a.from, a.err))
		return
	}
	v.bindings = append(v.bindings, fromBindings(a.answer.Bindings)...)
	if a.answer.RejectionReason != "" {
		v.against = append(v.against, fmt.Sprintf("%s: %s", a.from, a.answer.RejectionReason))
		return
	}
	v.ledgers[a.answer.Ledger] = true
}

// collectVotes stores the vote of this machine, and requests votes from the others until a quorum
// has voted for the machine.
func (s *Server) collectVotes(ctx context.Context, c *config.Config, vs voters, m candidate) (votes, error) {
	v := votes{ledgers: map[string]bool{}}
	own, err := s.apply(c, presented{m.member, m.hasCertificate})
	if err != nil {
		return v, err
	}
	if vs.self {
		v.ledgers[own.ledger.ID] = true
	}
	needed, public := vs.majority(), own.ledger.PublicForTicket(m.member.Ticket)
	// A ticket requires the quorum of the time when it was issued.
	if !m.hasCertificate && !own.ledger.TicketUsed(m.member.Ticket) && len(public.Tickets) == 1 {
		needed = public.Tickets[0].Quorum
	}
	if len(v.ledgers) < needed {
		r := &api.VoteRequest{Membership: toMembership(public), Candidate: toMember(m.member), HasCertificate: m.hasCertificate}
		s.quorum.vote(ctx, vs.others, r, &v, needed)
	}
	if len(v.ledgers) >= needed {
		return v, nil
	}
	// If no machine can join with this ticket any more, return this reason. It explains more than
	// the number of votes.
	_, err = s.check(c, counted{m.member, m.hasCertificate, v.bindings, len(v.ledgers), needed})
	if err != nil && status.Code(err) != codes.Unavailable {
		return v, err
	}
	return v, noQuorum(len(v.ledgers), vs, "voted for "+m.member.Name, v.against)
}

// storeMember writes a member into this ledger and replicates it. When it returns, a majority of
// the ledgers contain the member. The machine receives the certificates only afterwards. So they
// can be revoked, and no other machine gets the name or the address.
func (s *Server) storeMember(ctx context.Context, c *config.Config, vs voters, m candidate, v votes) error {
	admitted, err := s.apply(c, counted{m.member, m.hasCertificate, v.bindings, len(v.ledgers), vs.majority()})
	if err != nil {
		return err
	}
	ticket := m.member.Ticket
	changed := &api.ReplicateMembershipRequest{Membership: toMembership(admitted.ledger.PublicForTicket(ticket))}
	stored, failed, _ := s.quorum.replicate(ctx, vs.others, changed, ticket, vs.needed())
	if err := vs.check(len(stored), "hold "+m.member.Name+" in their ledgers", failed); err != nil {
		return err
	}
	_, err = s.check(c, signed{m.member}) // an operator can have removed it meanwhile
	return err
}

// signer signs the certificates of a member, and records their first expiry.
type signer struct {
	ticket  string
	expires time.Time
}

// issue signs a certificate with a CA of the cluster.
func (s *signer) issue(pair config.CertKey, spec pki.Spec, key *ecdsa.PublicKey) ([]byte, error) {
	ca, err := pki.ParseCA(pair.PEM())
	if err != nil {
		return nil, err
	}
	spec.TTL, spec.Backdate, spec.For, spec.Ticket = memberTTL, nodespec.LeafBackdate, key, s.ticket
	leaf, err := ca.Issue(spec)
	if err != nil {
		return nil, err
	}
	if s.expires.IsZero() || leaf.Cert.NotAfter.Before(s.expires) {
		s.expires = leaf.Cert.NotAfter
	}
	return leaf.Cert.Raw, nil
}

// sign issues all certificates of a member, and returns their first expiry.
func sign(c *config.Config, m candidate) (out *api.JoinResponse, expires time.Time, err error) {
	s, addresses := signer{ticket: m.member.Ticket}, []netip.Addr{m.address}
	out = &api.JoinResponse{NodeCertificates: map[string][]byte{}}
	if out.MachineCertificate, err = s.issue(c.Cluster.Spec.PKI.Machine, nodespec.MachineLeaf(m.member.Name, addresses), m.key); err != nil {
		return nil, expires, err
	}
	for _, l := range nodespec.NodeLeaves(m.member.Name, addresses) {
		if out.NodeCertificates[l.Cert], err = s.issue(c.Cluster.Spec.PKI.Kubernetes, l.Spec, m.nodeKeys[l.Cert]); err != nil {
			return nil, expires, err
		}
	}
	return out, s.expires, nil
}
