package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How the control-plane machines of a cluster agree on its members, without Kubernetes and without
// etcd (docs/decisions/0028-joining.md). Each of them has a ledger (trust.Ledger) with the members,
// the unused join tickets and the revocations. A join ticket, short ticket, is the client
// certificate with which a machine can join. trust.Ledger decides each vote.
//
//  1. Each machine polls the others every few seconds for the membership, as for revocations
//     (sync.go), and merges it into its own ledger. The answer also contains the name of the polled
//     machine. From then on the name is reserved: no worker can join with it.
//  2. A ticket is issued after a majority of the machines stored it (ReplicateMembership).
//  3. A machine with a ticket is admitted if a majority votes that no other key presented the
//     ticket (Vote). It gets certificates after a majority stored it as a member in their ledgers
//     (ReplicateMembership). A member that renews is admitted if a majority has no objection.
//  4. A machine that removes a member replicates the removal to the others at once, and reports the
//     machines that did not answer. These receive the removal by a later sync.
//
// A control plane of one machine is its own quorum.

// callAllTimeout bounds one parallel call of several machines, including the connections.
const callAllTimeout = 4 * time.Second

// voters are the configured control-plane machines.
type voters struct {
	others []netip.Addr
	self   bool // this machine is a voter
}

// voters returns the voters of a control-plane machine with a cluster configuration. syncPeers
// leaves out the address of this machine, so this machine is a voter if others is shorter than
// Cluster.spec.controlPlanes. If controlPlanes is empty, this machine is the only voter. The
// configuration is a parameter and not read again: a call uses one configuration from its beginning
// to its end.
func (m *machine) voters(c *config.Config) voters {
	e := voters{others: m.syncPeers(c)}
	e.self = len(c.Cluster.Spec.ControlPlanes) == 0 || len(e.others) < len(c.Cluster.Spec.ControlPlanes)
	return e
}

// selfVotes returns 1 if this machine is a voter, else 0.
func (e voters) selfVotes() int {
	if e.self {
		return 1
	}
	return 0
}

func (e voters) all() int { return len(e.others) + e.selfVotes() }

func (e voters) majority() int { return trust.Majority(e.all()) }

// peerConns are the persistent connections to the other machines of the cluster.
type peerConns struct {
	sync.Mutex
	all map[netip.Addr]*peerConn
	// replaces dialPeer in tests; nil otherwise
	dial func(context.Context, netip.Addr) (*client.Client, error)
}

type peerConn struct {
	lock   chan struct{} // holds one element while a goroutine dials or checks the connection
	client *client.Client
	cert   []byte // client certificate of the last dial
}

// failedCall is the error of a call together with the client certificate that the call presented.
// The machine may have renewed its certificate since the call; then an error about the presented
// certificate does not apply to the new certificate.
type failedCall struct {
	error
	cert []byte // DER; empty if unknown
}

func (f failedCall) Unwrap() error { return f.error }

// connTo returns the connection to a machine of the cluster and the client certificate of the
// connection. A caller closes the client if a call fails.
func (m *machine) connTo(ctx context.Context, addr netip.Addr) (*client.Client, []byte, error) {
	m.peerConns.Lock()
	if m.peerConns.all == nil {
		m.peerConns.all = map[netip.Addr]*peerConn{}
	}
	c := m.peerConns.all[addr]
	if c == nil {
		c = &peerConn{lock: make(chan struct{}, 1)}
		m.peerConns.all[addr] = c
	}
	m.peerConns.Unlock()
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("machine %s: cannot connect: %w", addr, context.Cause(ctx))
	}
	if c.client != nil && c.client.Connected() {
		return c.client, c.cert, nil
	}
	if c.client != nil {
		_ = c.client.Close() // it is broken
		c.client = nil
	}
	var err error
	c.client, c.cert, err = m.dialPeer(ctx, addr)
	return c.client, c.cert, err
}

// dialPeer connects to another control-plane machine with the machine certificate. shown is the
// certificate that it presents (DER).
func (m *machine) dialPeer(ctx context.Context, addr netip.Addr) (c *client.Client, shown []byte, err error) {
	if m.peerConns.dial != nil {
		c, err = m.peerConns.dial(ctx, addr)
		return c, nil, err
	}
	e, err := m.peerAt(netip.AddrPortFrom(addr, apidPort).String())
	if err != nil {
		return nil, nil, err
	}
	e.Accepts = m.checkControlPlane
	c, err = client.Dial(ctx, e)
	return c, e.Cert.Certificate[0], err
}

// closeExcept closes all connections but the connections to the named machines.
func (c *peerConns) closeExcept(named []netip.Addr) {
	c.Lock()
	defer c.Unlock()
	for addr, old := range c.all {
		if slices.Contains(named, addr) {
			continue
		}
		select {
		case old.lock <- struct{}{}:
			if old.client != nil {
				// a running call fails: its machine is not in the list any more
				_ = old.client.Close()
			}
			delete(c.all, addr)
			<-old.lock
		default: // a goroutine is dialing; the next round closes it
		}
	}
}

// call makes a call to another machine of the cluster and wraps its error in failedCall.
func call[T any](ctx context.Context, m *machine, addr netip.Addr, do func(*client.Client) (T, error)) (T, error) {
	var nothing T
	c, shown, err := m.connTo(ctx, addr)
	if err != nil {
		return nothing, failedCall{err, shown}
	}
	answer, err := do(c)
	if err != nil {
		// The connection may be the cause: the server may have revoked the client certificate that
		// this machine presented. The next call dials again.
		_ = c.Close()
		return answer, failedCall{err, shown}
	}
	return answer, nil
}

// peerAnswer is the result of a call to another machine.
type peerAnswer[T any] struct {
	from   netip.Addr
	answer T
	err    error
}

// callAll makes a call to several machines in parallel and passes each answer to take. It returns
// when take has enough answers or all machines have answered; a call that reaches the timeout
// counts as an answer with an error. If it returns early, the running calls continue in the
// background.
func callAll[T any](ctx context.Context, m *machine, addrs []netip.Addr, do func(context.Context, *client.Client) (T, error), take func(peerAnswer[T]) (enough bool)) {
	callCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callAllTimeout)
	answers := make(chan peerAnswer[T], len(addrs))
	var calls sync.WaitGroup
	for _, addr := range addrs {
		calls.Go(func() {
			a := peerAnswer[T]{from: addr}
			a.err = panics.Do("asking "+addr.String(), func() (err error) {
				a.answer, err = call(callCtx, m, addr, func(c *client.Client) (T, error) { return do(callCtx, c) })
				return err
			})
			answers <- a
		})
	}
	go func() {
		calls.Wait()
		cancel()
	}()
	for range addrs {
		if take(<-answers) {
			return
		}
	}
}

// peerError formats an error of another machine.
func peerError(addr netip.Addr, err error) string {
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s: %s", addr, s.Message())
	}
	return fmt.Sprintf("%s: %v", addr, err)
}

// newLedgerID returns a random ledger ID.
func newLedgerID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it does not fail
	return hex.EncodeToString(id)
}

// withIDLocked returns the current trust.Ledger of this machine. At first use it creates and stores
// the ledger ID.
func (b *ledger) withIDLocked() (trust.Ledger, error) {
	known := b.currentLocked()
	if b.damaged != nil {
		return known, b.damaged
	}
	if known.ID == "" {
		if err := b.storeLocked(known.WithID(newLedgerID())); err != nil {
			return known, err
		}
	}
	return b.currentLocked(), nil
}

// syncMembership polls the membership of another control-plane machine by means of ask, merges it
// and stores the changes. Peers exchange the public membership (Public); the answer omits it if its
// digest is that of the request. b.session records which ledgers were synced since the start of
// machined. syncMembership returns the ledger ID of the other machine.
func (b *ledger) syncMembership(ask func(*api.GetMembershipRequest) (*api.GetMembershipResponse, error)) (from string, err error) {
	b.Lock()
	known, err := b.withIDLocked()
	b.Unlock()
	if err != nil {
		return "", err
	}
	answer, err := ask(&api.GetMembershipRequest{Digest: known.Public().Digest()})
	if err != nil {
		return "", err
	}
	if err := trust.CheckID(answer.Ledger); err != nil {
		return "", err
	}
	b.Lock()
	defer b.Unlock()
	if known, err = b.withIDLocked(); err != nil { // another call may have written meanwhile
		return "", err
	}
	next, news, err := known.MergeMembership(fromMembership(answer.Membership), &b.session, time.Now())
	if err != nil {
		return "", err
	}
	next, pruned := next.Prune(&b.session, time.Now())
	if news || pruned {
		if err := b.storeLocked(next); err != nil {
			return "", err
		}
	}
	b.session.MarkSynced(answer.Ledger)
	return answer.Ledger, nil
}

// recordControlPlane stores the name of the control-plane machine at an address. name is empty, and
// nothing is stored, if that machine runs a version that does not report its name. planes are the
// addresses of the control plane.
func (b *ledger) recordControlPlane(addr netip.Addr, name string, planes []netip.Addr) error {
	b.Lock()
	defer b.Unlock()
	known, err := b.withIDLocked()
	if err != nil || name == "" || known.ControlPlanes[addr.String()] == name {
		return err
	}
	if known, err = known.RecordControlPlaneName(addr.String(), name, addressStrings(planes)); err != nil {
		return err
	}
	return b.storeLocked(known)
}

// syncMemberships polls the other control-plane machines until enough of them have answered. It
// returns the ledger IDs by address, and the errors of the machines with a failed call.
func (m *machine) syncMemberships(ctx context.Context, others []netip.Addr, enough int) (ledgers map[netip.Addr]string, unreached []string) {
	ledgers = map[netip.Addr]string{}
	callAll(ctx, m, others, func(ctx context.Context, c *client.Client) (string, error) {
		return m.ledger.syncMembership(func(r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
			return c.Cluster.GetMembership(ctx, r)
		})
	}, func(a peerAnswer[string]) bool {
		if a.err != nil {
			unreached = append(unreached, peerError(a.from, a.err))
		} else {
			ledgers[a.from] = a.answer
		}
		return len(ledgers) >= enough
	})
	return ledgers, unreached
}

// replicate sends r to the other control-plane machines until enough of them store the ticket, or
// the member that joined with it. If ticket is empty, each answer without an error counts. It
// returns the addresses of the machines that count, and the errors of the other machines. refused
// is the error of a machine that rejects r.
func (m *machine) replicate(ctx context.Context, others []netip.Addr, r *api.ReplicateMembershipRequest, ticket string, enough int) (stored, unreached []string, refused error) {
	callAll(ctx, m, others, func(ctx context.Context, c *client.Client) (*api.ReplicateMembershipResponse, error) {
		return c.Cluster.ReplicateMembership(ctx, r)
	}, func(a peerAnswer[*api.ReplicateMembershipResponse]) bool {
		switch {
		case status.Code(a.err) == codes.FailedPrecondition:
			refused = errors.New(peerError(a.from, a.err))
			unreached = append(unreached, refused.Error())
		case a.err != nil:
			unreached = append(unreached, peerError(a.from, a.err))
		case ticket == "" || slices.Contains(a.answer.StoredTickets, ticket):
			stored = append(stored, a.from.String())
		default:
			unreached = append(unreached, fmt.Sprintf("%s: it has been removed there", a.from))
		}
		return len(stored) >= enough
	})
	return stored, unreached, refused
}

// requireControlPlane rejects every caller but the control-plane machines of the cluster. Workers
// have certificates of the same CA, but with the name of their ticket. A machine certificate
// without a ticket can come from two sources: the key of the machine CA, which the control-plane
// machines have, or an operator CA. The holder of an operator CA can issue an admin certificate as
// well, and so gains no right here.
func requireControlPlane(ctx context.Context) error {
	if requireMachine(ctx) != nil || callerInfo(ctx, apid.MetadataTicket) != "" {
		return status.Error(codes.PermissionDenied, "only control-plane machines can make this call")
	}
	return nil
}

// requireMachine rejects every caller that is not a machine of the cluster. It also rejects users,
// regardless of their role.
func requireMachine(ctx context.Context) error {
	if pki.RolePrefix+callerInfo(ctx, apid.MetadataRole) != pki.RoleMachine {
		return status.Error(codes.PermissionDenied, "only machines of the cluster can make this call")
	}
	return nil
}

// memberID returns an ID of the calling machine that is the same for all its certificates: its
// ticket, or its name if it is a control-plane machine.
func memberID(ctx context.Context) string {
	return cmp.Or(callerInfo(ctx, apid.MetadataTicket), callerInfo(ctx, apid.MetadataName))
}

// controlPlaneConfig returns the configuration for a call between control-plane machines.
func (a clusterAPI) controlPlaneConfig(ctx context.Context) (*config.Config, error) {
	if err := requireControlPlane(ctx); err != nil {
		return nil, err
	}
	now, _ := a.m.config.Get()
	if c := now.config; c == nil || c.Cluster == nil || isWorker(c) {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not a control-plane machine")
	}
	return now.config, nil
}

func (a clusterAPI) GetMembership(ctx context.Context, r *api.GetMembershipRequest) (*api.GetMembershipResponse, error) {
	c, err := a.controlPlaneConfig(ctx)
	if err != nil {
		return nil, err
	}
	a.m.ledger.Lock()
	current, err := a.m.ledger.withIDLocked()
	a.m.ledger.Unlock()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.GetMembershipResponse{Ledger: current.ID, Machine: c.Machine.Metadata.Name}
	if membership := current.Public(); !slices.Equal(membership.Digest(), r.Digest) {
		out.Membership = toMembership(membership)
	}
	return out, nil
}

func (a clusterAPI) ReplicateMembership(ctx context.Context, r *api.ReplicateMembershipRequest) (*api.ReplicateMembershipResponse, error) {
	c, err := a.controlPlaneConfig(ctx)
	if err != nil {
		return nil, err
	}
	// roll is the membership that the caller sends, known is this machine's ledger
	roll, known := fromMembership(r.Membership), a.m.ledger.current()
	for _, t := range roll.Tickets {
		if reservedName(c, known, t.Name) {
			return nil, status.Errorf(codes.FailedPrecondition, "machine %s: cannot create ticket: the control plane has this name", t.Name)
		}
	}
	if err := a.m.joinRequests.deny(r.Denied); err != nil {
		return nil, err
	}
	var removed []trust.Revocation
	for _, v := range r.Revocations {
		// A revocation of a name spreads only by polls (sync.go). Here Lineage is the serial number
		// of a ticket.
		if v.Name != "" || v.Lineage == "" {
			return nil, status.Error(codes.InvalidArgument, "a removal must name a ticket")
		}
		removed = append(removed, fromAPIRevocation(v))
	}
	out := &api.ReplicateMembershipResponse{}
	var news []trust.Revocation
	err = a.m.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		var err error
		if b, news, err = b.MergeRevocations(removed, time.Now()); err != nil {
			return b, fmt.Errorf("replicated by %s: %w", cmp.Or(callerInfo(ctx, apid.MetadataName), "a machine without a name"), err)
		}
		if b, _, err = b.MergeMembership(roll, &a.m.ledger.session, time.Now()); err != nil {
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
		a.m.events.add("trust", "config", fmt.Sprintf("%s is revoked: replicated by %s, done by %s", v, callerInfo(ctx, apid.MetadataName), v.By))
	}
	if err := a.m.enforceRevocations(context.WithoutCancel(ctx)); err != nil {
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

func (a clusterAPI) Vote(ctx context.Context, r *api.VoteRequest) (*api.VoteResponse, error) {
	c, err := a.controlPlaneConfig(ctx)
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
	state, _ := a.m.networkState.Get()
	rejection := checkCallerAddress(c, state, addr)
	if rejection == nil && reservedName(c, a.m.ledger.current(), m.Name) {
		rejection = fmt.Errorf("machine %s: cannot join: the control plane has this name", m.Name)
	}
	out := &api.VoteResponse{}
	err = a.m.ledger.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, _, err := b.MergeMembership(fromMembership(r.Membership), &a.m.ledger.session, time.Now())
		if err != nil {
			return b, err
		}
		if rejection == nil {
			b, rejection = b.Vote(m, r.HasCertificate, &a.m.ledger.session, time.Now())
		}
		out.Ledger, out.Bindings = b.ID, toMembership(b.PublicForTicket(m.Ticket)).Bindings
		return b, nil
	})
	if rejection != nil {
		out.RejectionReason = rejection.Error()
	}
	return out, err
}

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
	for _, c := range r.Bindings {
		out.Bindings = append(out.Bindings, &api.TicketBinding{Ticket: c.Ticket, Voter: c.Voter, Key: c.Key})
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
	return out
}

// fromBindings converts ticket bindings from the API's form.
func fromBindings(claims []*api.TicketBinding) []trust.TicketBinding {
	var out []trust.TicketBinding
	for _, c := range claims {
		out = append(out, trust.TicketBinding{Ticket: c.Ticket, Voter: c.Voter, Key: c.Key})
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
