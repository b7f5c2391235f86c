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

// How the control-plane machines of a cluster agree on who is one of it, without Kubernetes and
// without etcd (docs/decisions/0028-joining.md). What each may say is decided by trust.Book.
//
//  1. Each asks the others every few seconds for their roll, as for revocations (learn.go), and merges it into its own. The answer has their
//     names, too, which are given to nobody else.
//  2. A ticket is issued when more than half of them know it (Tell).
//  3. Who shows a ticket is let in when more than half of them say that no other key has shown it to them (Vouch), and gets certificates when
//     more than half of them have it in their books (Tell). A member that asks again is let in when more than half have nothing against it.
//  4. Who removes one tells the others at once, and says which of them did not answer. They learn it when they do.
//
// A control plane of one machine agrees with itself.

// agreeTime bounds asking all the others once, the connections included.
const agreeTime = 4 * time.Second

// electorate is the control plane, as the configuration has it.
type electorate struct {
	others []netip.Addr
	own    bool // this machine is one of it
}

// electorate is that of a control-plane machine with a configuration, which has a cluster. Where
// Cluster.spec.controlPlanes names nobody, this machine is all of it. It takes what the caller has
// checked, and does not read it again: a call goes on with one configuration from its beginning to
// its end.
func (m *machine) electorate(c *config.Config) electorate {
	e := electorate{others: m.teachers(c)}
	e.own = len(c.Cluster.Spec.ControlPlanes) == 0 || len(e.others) < len(c.Cluster.Spec.ControlPlanes)
	return e
}

// one is how many of it this machine is.
func (e electorate) one() int {
	if e.own {
		return 1
	}
	return 0
}

func (e electorate) all() int { return len(e.others) + e.one() }

func (e electorate) majority() int { return trust.Majority(e.all()) }

// connections are those to the cluster's other machines, which last.
type connections struct {
	sync.Mutex
	all  map[netip.Addr]*connection
	dial func(context.Context, netip.Addr) (*client.Client, error) // nil for the usual way
}

type connection struct {
	turn   chan struct{} // holds one while somebody connects, or looks
	client *client.Client
	shown  []byte // the certificate that it was made with, or was to be
}

// failedCall is why a call failed, and by which certificate of this machine it was made: what is
// said of one is not said of its successor, which may have come meanwhile.
type failedCall struct {
	error
	shown []byte // DER; empty if it is not known
}

func (f failedCall) Unwrap() error { return f.error }

// to is the connection to a machine of the cluster, and the certificate that it was made with. Who
// has failed with it drops it.
func (m *machine) to(ctx context.Context, addr netip.Addr) (*client.Client, []byte, error) {
	m.connections.Lock()
	if m.connections.all == nil {
		m.connections.all = map[netip.Addr]*connection{}
	}
	c := m.connections.all[addr]
	if c == nil {
		c = &connection{turn: make(chan struct{}, 1)}
		m.connections.all[addr] = c
	}
	m.connections.Unlock()
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("machine %s: cannot connect: %w", addr, context.Cause(ctx))
	}
	if c.client != nil && c.client.Connected() {
		return c.client, c.shown, nil
	}
	if c.client != nil {
		_ = c.client.Close() // it is broken
		c.client = nil
	}
	var err error
	c.client, c.shown, err = m.dialOther(ctx, addr)
	return c.client, c.shown, err
}

// dialOther connects to another machine of the control plane, as a machine.
func (m *machine) dialOther(ctx context.Context, addr netip.Addr) (c *client.Client, shown []byte, err error) {
	if m.connections.dial != nil {
		c, err = m.connections.dial(ctx, addr)
		return c, nil, err
	}
	e, err := m.peerAt(netip.AddrPortFrom(addr, apidPort).String())
	if err != nil {
		return nil, nil, err
	}
	e.Accepts = m.controlsStill
	c, err = client.Dial(ctx, e)
	return c, e.Cert.Certificate[0], err
}

// keep closes all connections but those to some machines.
func (c *connections) keep(named []netip.Addr) {
	c.Lock()
	defer c.Unlock()
	for addr, old := range c.all {
		if slices.Contains(named, addr) {
			continue
		}
		select {
		case old.turn <- struct{}{}:
			if old.client != nil {
				_ = old.client.Close() // nothing is sent any more
			}
			delete(c.all, addr)
			<-old.turn
		default: // it is being made; the next time, then
		}
	}
}

// call makes a call to another machine of the cluster, and says in a sentence why that failed.
func call[T any](ctx context.Context, m *machine, addr netip.Addr, do func(*client.Client) (T, error)) (T, error) {
	var nothing T
	c, shown, err := m.to(ctx, addr)
	if err != nil {
		return nothing, failedCall{err, shown}
	}
	answer, err := do(c)
	if err != nil {
		// it may be the connection: the certificate that it was made with counts no more
		_ = c.Close()
		return answer, failedCall{err, shown}
	}
	return answer, nil
}

// answered is what another machine has said.
type answered[T any] struct {
	from   netip.Addr
	answer T
	err    error
}

// askAll makes a call to each of some machines at the same time, until take has enough, or all have
// answered, or the time is up. Calls that are under way then go on to their end.
func askAll[T any](ctx context.Context, m *machine, addrs []netip.Addr, do func(context.Context, *client.Client) (T, error), take func(answered[T]) (enough bool)) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), agreeTime)
	answers := make(chan answered[T], len(addrs))
	var calls sync.WaitGroup
	for _, addr := range addrs {
		calls.Go(func() {
			a := answered[T]{from: addr}
			a.err = panics.Do("asking "+addr.String(), func() (err error) {
				a.answer, err = call(asking, m, addr, func(c *client.Client) (T, error) { return do(asking, c) })
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

// reason is an error of another machine in one sentence.
func reason(addr netip.Addr, err error) string {
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s: %s", addr, s.Message())
	}
	return fmt.Sprintf("%s: %v", addr, err)
}

// newBookID is a name for a book.
func newBookID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it does not fail
	return hex.EncodeToString(id)
}

// begunLocked is the book, with a name.
func (b *book) begunLocked() (trust.Ledger, error) {
	known := b.openLocked()
	if b.damaged != nil {
		return known, b.damaged
	}
	if known.ID == "" {
		if err := b.keepLocked(known.WithID(newBookID())); err != nil {
			return known, err
		}
	}
	return b.openLocked(), nil
}

// learnRoll writes down what is news of what another control-plane machine knows of the members.
func (b *book) learnRoll(ask func(*api.RollRequest) (*api.RollResponse, error)) (from string, err error) {
	b.Lock()
	known, err := b.begunLocked()
	b.Unlock()
	if err != nil {
		return "", err
	}
	answer, err := ask(&api.RollRequest{Digest: known.Public().Digest()})
	if err != nil {
		return "", err
	}
	if err := trust.CheckID(answer.Book); err != nil {
		return "", err
	}
	b.Lock()
	defer b.Unlock()
	if known, err = b.begunLocked(); err != nil { // somebody else may have written meanwhile
		return "", err
	}
	next, news, err := known.MergeMembership(fromMembership(answer.Roll), &b.session, time.Now())
	if err != nil {
		return "", err
	}
	next, pruned := next.Prune(&b.session, time.Now())
	if news || pruned {
		if err := b.keepLocked(next); err != nil {
			return "", err
		}
	}
	b.session.MarkSynced(answer.Book)
	return answer.Book, nil
}

// meet notes the name of the control-plane machine at an address. A version that does not say it
// has none.
func (b *book) meet(addr netip.Addr, name string, planes []netip.Addr) error {
	b.Lock()
	defer b.Unlock()
	known, err := b.begunLocked()
	if err != nil || name == "" || known.ControlPlanes[addr.String()] == name {
		return err
	}
	if known, err = known.RecordControlPlaneName(addr.String(), name, spelled(planes)); err != nil {
		return err
	}
	return b.keepLocked(known)
}

// learnRolls asks the others, until so many have answered, and returns whose books those are, and
// why others did not answer.
func (m *machine) learnRolls(ctx context.Context, others []netip.Addr, enough int) (books map[netip.Addr]string, silent []string) {
	books = map[netip.Addr]string{}
	askAll(ctx, m, others, func(ctx context.Context, c *client.Client) (string, error) {
		return m.book.learnRoll(func(r *api.RollRequest) (*api.RollResponse, error) { return c.Cluster.Roll(ctx, r) })
	}, func(a answered[string]) bool {
		if a.err != nil {
			silent = append(silent, reason(a.from, a.err))
		} else {
			books[a.from] = a.answer
		}
		return len(books) >= enough
	})
	return books, silent
}

// tell has others note what this machine knows, until so many of them hold a ticket, or its member.
// refused is why one of them would not.
func (m *machine) tell(ctx context.Context, others []netip.Addr, r *api.TellRequest, ticket string, enough int) (noted, silent []string, refused error) {
	askAll(ctx, m, others, func(ctx context.Context, c *client.Client) (*api.TellResponse, error) { return c.Cluster.Tell(ctx, r) }, func(a answered[*api.TellResponse]) bool {
		switch {
		case status.Code(a.err) == codes.FailedPrecondition:
			refused = errors.New(reason(a.from, a.err))
			silent = append(silent, refused.Error())
		case a.err != nil:
			silent = append(silent, reason(a.from, a.err))
		case ticket == "" || slices.Contains(a.answer.Tickets, ticket):
			noted = append(noted, a.from.String())
		default:
			silent = append(silent, fmt.Sprintf("%s: it has been removed there", a.from))
		}
		return len(noted) >= enough
	})
	return noted, silent, refused
}

// fromControlPlane refuses everybody but the cluster's control-plane machines. A worker's
// certificate is by the same CA, and names its ticket. One without is by who has the key of that
// CA, or by an operator's own, whose holder can be an admin.
func fromControlPlane(ctx context.Context) error {
	if fromMachine(ctx) != nil || said(ctx, apid.MetadataTicket) != "" {
		return status.Error(codes.PermissionDenied, "this is for the control-plane machines among themselves")
	}
	return nil
}

// fromMachine refuses everybody but the cluster's machines, people who may do more than they among
// them.
func fromMachine(ctx context.Context) error {
	if pki.RolePrefix+said(ctx, apid.MetadataRole) != pki.RoleMachine {
		return status.Error(codes.PermissionDenied, "this is for the cluster's machines among themselves")
	}
	return nil
}

// memberOf says which machine of the cluster calls, whichever of its certificates it shows: by the
// ticket that it came by, or by its name, if it is one of the control plane.
func memberOf(ctx context.Context) string {
	return cmp.Or(said(ctx, apid.MetadataTicket), said(ctx, apid.MetadataName))
}

// plane is the configuration of a control-plane machine that another one asks.
func (a clusterAPI) plane(ctx context.Context) (*config.Config, error) {
	if err := fromControlPlane(ctx); err != nil {
		return nil, err
	}
	now, _ := a.m.config.Get()
	if c := now.config; c == nil || c.Cluster == nil || worker(c) {
		return nil, status.Error(codes.FailedPrecondition, "this machine is none of the control plane")
	}
	return now.config, nil
}

func (a clusterAPI) Roll(ctx context.Context, r *api.RollRequest) (*api.RollResponse, error) {
	c, err := a.plane(ctx)
	if err != nil {
		return nil, err
	}
	a.m.book.Lock()
	known, err := a.m.book.begunLocked()
	a.m.book.Unlock()
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	out := &api.RollResponse{Book: known.ID, Machine: c.Machine.Metadata.Name}
	if roll := known.Public(); !slices.Equal(roll.Digest(), r.Digest) {
		out.Roll = toMembership(roll)
	}
	return out, nil
}

func (a clusterAPI) Tell(ctx context.Context, r *api.TellRequest) (*api.TellResponse, error) {
	c, err := a.plane(ctx)
	if err != nil {
		return nil, err
	}
	roll, known := fromMembership(r.Roll), a.m.book.known()
	for _, t := range roll.Tickets {
		if reservedName(c, known, t.Name) {
			return nil, status.Errorf(codes.FailedPrecondition, "machine %s: cannot be invited: it is the name of the control plane", t.Name)
		}
	}
	if err := a.m.asking.deny(r.Denied); err != nil {
		return nil, err
	}
	var removed []trust.Revocation
	for _, v := range r.Removed {
		if v.Name != "" || v.Origin == "" { // names are learnt, by who asks for them
			return nil, status.Error(codes.InvalidArgument, "a removal is one of a ticket")
		}
		removed = append(removed, revocationOf(v))
	}
	out := &api.TellResponse{}
	var news []trust.Revocation
	err = a.m.book.update(func(b trust.Ledger) (trust.Ledger, error) {
		var err error
		if b, news, err = b.MergeRevocations(removed, time.Now()); err != nil {
			return b, fmt.Errorf("told by %s: %w", cmp.Or(said(ctx, apid.MetadataName), "a machine without a name"), err)
		}
		if b, _, err = b.MergeMembership(roll, &a.m.book.session, time.Now()); err != nil {
			return b, err
		}
		out.Book = b.ID
		for _, serial := range serials(roll) {
			if holds := b.PublicForTicket(serial); len(holds.Members)+len(holds.Tickets) > 0 {
				out.Tickets = append(out.Tickets, serial)
			}
		}
		return b, nil
	})
	if err != nil || len(news) == 0 {
		return out, err
	}
	for _, v := range news {
		a.m.events.add("trust", "config", fmt.Sprintf("%s is revoked: told by %s, done by %s", v, said(ctx, apid.MetadataName), v.By))
	}
	if err := a.m.enforce(context.WithoutCancel(ctx)); err != nil {
		return nil, status.Errorf(codes.Internal, "it is written down, but not in force yet: %v", err)
	}
	return out, nil
}

// serials are the tickets that a roll is about.
func serials(r trust.Membership) []string {
	var out []string
	for _, t := range r.Tickets {
		out = append(out, t.Serial)
	}
	for _, m := range r.Members {
		out = append(out, m.Ticket)
	}
	return out
}

func (a clusterAPI) Vouch(ctx context.Context, r *api.VouchRequest) (*api.VouchResponse, error) {
	c, err := a.plane(ctx)
	if err != nil {
		return nil, err
	}
	if r.Machine == nil {
		return nil, status.Error(codes.InvalidArgument, "no machine is named")
	}
	m := fromWorker(r.Machine)
	if err := m.Check(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	addr, err := netip.ParseAddr(m.Address)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	state, _ := a.m.networkState.Get()
	why := notItsOwn(c, state, addr)
	if why == nil && reservedName(c, a.m.book.known(), m.Name) {
		why = fmt.Errorf("machine %s: cannot join: it is the name of the control plane", m.Name)
	}
	out := &api.VouchResponse{}
	err = a.m.book.update(func(b trust.Ledger) (trust.Ledger, error) {
		b, _, err := b.MergeMembership(fromMembership(r.Roll), &a.m.book.session, time.Now())
		if err != nil {
			return b, err
		}
		if why == nil {
			b, why = b.Vote(m, r.Known, &a.m.book.session, time.Now())
		}
		out.Book, out.Claims = b.ID, toMembership(b.PublicForTicket(m.Ticket)).Claims
		return b, nil
	})
	if why != nil {
		out.Refused = why.Error()
	}
	return out, err
}

// toMembership and fromMembership are a roll as the API has it.
func toMembership(r trust.Membership) *api.Membership {
	out := &api.Membership{}
	for _, m := range r.Members {
		out.Members = append(out.Members, toWorker(m))
	}
	for _, t := range r.Tickets {
		out.Tickets = append(out.Tickets, &api.Ticket{
			Serial: t.Serial, Name: t.Name, Expires: timestamppb.New(t.Expires), By: t.By, At: timestamppb.New(t.At), Voters: t.Voters, Needs: int32(t.Quorum),
		})
	}
	for _, c := range r.Bindings {
		out.Claims = append(out.Claims, &api.Claim{Ticket: c.Ticket, Voter: c.Voter, Key: c.Key})
	}
	return out
}

func fromMembership(r *api.Membership) trust.Membership {
	var out trust.Membership
	for _, m := range r.GetMembers() {
		out.Members = append(out.Members, fromWorker(m))
	}
	for _, t := range r.GetTickets() {
		out.Tickets = append(out.Tickets, trust.Ticket{
			Serial: t.Serial, Name: t.Name, At: t.At.AsTime(), Expires: t.Expires.AsTime(), By: t.By, Voters: t.Voters, Quorum: int(t.Needs),
		})
	}
	out.Bindings = fromClaims(r.GetClaims())
	return out
}

func fromClaims(claims []*api.Claim) []trust.TicketBinding {
	var out []trust.TicketBinding
	for _, c := range claims {
		out = append(out, trust.TicketBinding{Ticket: c.Ticket, Voter: c.Voter, Key: c.Key})
	}
	return out
}

// toWorker and fromWorker are a member as the API has it.
func toWorker(m trust.Member) *api.Member {
	return &api.Member{
		Name: m.Name, Ticket: m.Ticket, Fingerprint: m.Key, Address: m.Address, Count: m.Generation,
		Joined: timestamppb.New(m.Joined), Renewed: timestamppb.New(m.Renewed), Expires: timestamppb.New(m.Expires),
	}
}

func fromWorker(m *api.Member) trust.Member {
	return trust.Member{
		Name: m.Name, Ticket: m.Ticket, Key: m.Fingerprint, Address: m.Address, Generation: m.Count,
		Joined: m.Joined.AsTime(), Renewed: m.Renewed.AsTime(), Expires: m.Expires.AsTime(),
	}
}
