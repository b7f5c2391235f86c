package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Join requests of machines without a ticket (docs/decisions/0044-join-requests.md): an operator
// approves or denies them. An approved machine gets a ticket for the key that it sent; the join
// then proceeds as for any other machine (server.go, worker.go).

// Requests are the pending join requests at this control-plane machine. They are in memory only:
// the machines repeat them.
type Requests struct {
	deps   *Deps
	ledger *Ledger
	server *Server // issues the tickets of approved machines

	mu         sync.Mutex
	list       joinrequest.List
	callers    limits.Callers
	eventLimit *rate.Limiter // events of first requests
}

func newRequests(d *Deps, l *Ledger) *Requests {
	// A machine sends a request every ten seconds (joinrequest.Interval), and several machines may
	// share an address.
	return &Requests{
		deps: d, ledger: l, eventLimit: rate.NewLimiter(rate.Every(10*time.Second), 10),
		callers: limits.Callers{Address: limits.Rates{Interval: 5 * time.Second, Burst: 20}, Network: limits.Rates{Interval: 100 * time.Millisecond, Burst: 200}},
	}
}

// AcceptsJoinRequests reports whether a configuration accepts requests of machines without a
// ticket.
func AcceptsJoinRequests(c *config.Config) bool {
	return c.IsControlPlane() && c.Cluster.Spec.JoinRequests
}

// RequestJoin answers the join request of a machine that has no certificate.
func (q *Requests) RequestJoin(r *api.RequestJoinRequest) *api.RequestJoinResponse {
	m, err := q.check(r)
	if err != nil {
		return &api.RequestJoinResponse{State: string(joinrequest.Rejected), Reason: err.Error()}
	}
	answer, known := q.answer(m)
	if !known && answer.State == joinrequest.Pending && q.eventLimit.Allow() {
		q.deps.Event("cluster", "operation", fmt.Sprintf("join request from %s for machine %s with key %s; an operator decides (`orlopctl nodes pending`)", m.Address, m.Name, m.Key))
	}
	return &api.RequestJoinResponse{State: string(answer.State), Certificate: answer.Certificate, Reason: answer.Reason}
}

// answer returns the answer to a request, and reports whether the machine has sent a request
// before.
func (q *Requests) answer(asks joinrequest.Machine) (answer joinrequest.Answer, known bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	old, known := q.list[asks.Key]
	if len(old.Ticket) > 0 && !q.ticketUsable(old) {
		q.list = q.list.Approved(asks.Key, nil, time.Time{}) // its ticket was revoked
	}
	// If an admitted machine lost its power before it received the certificates, it gets its ticket
	// again while the ticket is valid. No new approval is necessary.
	if member := q.ledger.Current().HasMember(asks.Name); member && len(q.list[asks.Key].Ticket) == 0 {
		return joinrequest.Answer{State: joinrequest.Rejected, Reason: nameTaken(asks.Name).Error()}, known
	}
	q.list, answer = q.list.Record(asks, q.deps.Now())
	return answer, known
}

// check returns the machine of a valid request. An invalid request does not reach an operator.
func (q *Requests) check(r *api.RequestJoinRequest) (joinrequest.Machine, error) {
	var out joinrequest.Machine
	if !q.callers.Allow(r.Peer) {
		return out, errors.New("too many requests from your address; wait a minute")
	}
	c := q.deps.config()
	if !AcceptsJoinRequests(c) {
		return out, client.ErrJoinRequestsDisabled
	}
	peer, err := netip.ParseAddrPort(r.Peer)
	if err != nil {
		return out, errors.New("cannot read the source address of the call")
	}
	addr := peer.Addr().Unmap()
	if err := checkCallerAddress(c, q.deps.ownAddresses(), addr); err != nil {
		return out, err
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return out, err
	}
	known := q.ledger.Current()
	other := known.MemberAtAddress(r.Name, addr.String())
	switch err := config.Check(config.New(r.Name, config.RoleWorker)).Err(); {
	case err != nil:
		return out, fmt.Errorf("machine %.80q: cannot join: the name is invalid", r.Name)
	case reservedName(c, known, r.Name):
		return out, fmt.Errorf("machine %s: cannot join: the control plane has this name", r.Name)
	case other != "":
		return out, fmt.Errorf("machine %s: cannot join: its source address %s is that of machine %[3]s; a machine sends its own request, and no pod does; if %[3]s is gone, an operator removes it first (`orlopctl nodes remove %[3]s`)", r.Name, addr, other)
	case known.HasMember(r.Name) && !known.HasKey(pki.KeyFingerprint(key)):
		return out, nameTaken(r.Name)
	}
	return joinrequest.Machine{Name: r.Name, Address: addr.String(), Key: pki.KeyFingerprint(key), Request: r.Csr}, nil
}

// nameTaken is the error for a name that another member has.
func nameTaken(name string) error {
	return fmt.Errorf("machine %s: cannot join: a member has this name; an operator removes it first (`orlopctl nodes remove %s`)", name, name)
}

// ticketUsable reports whether the machine can join, or has joined, with the ticket that it
// received.
func (q *Requests) ticketUsable(a joinrequest.Machine) bool {
	known := q.ledger.Current()
	if known.HasKey(a.Key) {
		return true
	}
	cert, err := x509.ParseCertificate(a.Ticket)
	return err == nil && slices.ContainsFunc(known.OpenTickets(q.deps.Now()), func(t trust.Ticket) bool { return t.Serial == pki.Serial(cert) })
}

// config returns the configuration of a control-plane machine that accepts join requests.
func (q *Requests) config() (*config.Config, error) {
	c, err := q.server.issuingConfig()
	if err == nil && !AcceptsJoinRequests(c) {
		err = status.Error(codes.FailedPrecondition, "join requests are disabled: set Cluster.spec.joinRequests on all control-plane machines, or create a ticket (`orlopctl nodes add`)")
	}
	return c, err
}

func (q *Requests) ListPending() (*api.ListPendingResponse, error) {
	if _, err := q.config(); err != nil {
		return nil, err
	}
	known, now := q.ledger.Current(), q.deps.Now()
	out := &api.ListPendingResponse{}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.list.Pending(now) {
		if known.HasKey(m.Key) { // another control-plane machine approved it, and it has joined
			continue
		}
		out.Machines = append(out.Machines, &api.PendingMachine{Name: m.Name, Address: m.Address, Fingerprint: m.Key, Since: timestamppb.New(m.Since)})
	}
	return out, nil
}

// find returns the request that an operator names, or a status error.
func (q *Requests) find(name, fingerprint string) (joinrequest.Machine, error) {
	key, err := pki.ParseFingerprint(fingerprint)
	if err != nil {
		return joinrequest.Machine{}, status.Error(codes.InvalidArgument, err.Error())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	m, err := q.list.Find(name, key, q.deps.Now())
	if err != nil {
		return m, status.Error(codes.FailedPrecondition, err.Error())
	}
	return m, nil
}

// Approve issues a ticket for the key in the join request, as CreateTicket does. unchanged is true
// if the machine was already approved.
func (q *Requests) Approve(ctx context.Context, by api.Caller, r *api.ApproveRequest) (unchanged bool, err error) {
	if _, err := q.config(); err != nil {
		return false, err
	}
	m, err := q.find(r.Name, r.Fingerprint)
	if err != nil {
		return false, err
	}
	if q.ledger.Current().HasKey(m.Key) || len(m.Ticket) > 0 && q.ticketUsable(m) {
		return true, nil // the machine has its ticket, but has not received the answer yet
	}
	ticket, err := q.server.CreateTicket(ctx, by, &api.CreateTicketRequest{Name: m.Name, Csr: m.Request, Ttl: r.Ttl})
	if err != nil {
		return false, err
	}
	cert, err := x509.ParseCertificate(ticket.Certificate)
	if err != nil {
		return false, status.Errorf(codes.Internal, "the ticket cannot be read: %v", err)
	}
	q.mu.Lock()
	q.list = q.list.Approved(m.Key, ticket.Certificate, cert.NotAfter)
	q.mu.Unlock()
	q.deps.Event("cluster", "operation", fmt.Sprintf("machine %s at %s is approved and joins with its next request: %s", m.Name, m.Address, m.Key))
	return false, nil
}

func (q *Requests) Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	c, err := q.config()
	if err != nil {
		return nil, err
	}
	m, err := q.find(r.Name, r.Fingerprint)
	if err != nil {
		return nil, err
	}
	if len(m.Ticket) > 0 || q.ledger.Current().HasKey(m.Key) {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %s: an operator has approved it already; `orlopctl nodes remove %s` revokes its ticket and removes the machine", m.Name, m.Name)
	}
	q.deny([]string{m.Key})
	out := &api.DenyResponse{}
	vs := q.server.quorum.voters(c)
	_, out.Unreached, _ = q.server.quorum.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Denied: []string{m.Key}}, "", len(vs.others))
	q.deps.Event("cluster", "operation", fmt.Sprintf("machine %s at %s is denied: %s", m.Name, m.Address, m.Key))
	return out, nil
}

// deny records the keys of machines that an operator denies, here or at another control-plane
// machine.
func (q *Requests) deny(keys []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, k := range keys {
		q.list = q.list.Denied(k, q.deps.Now())
	}
}

// CheckSource returns an error if a source address belongs to a pod, to the control plane or to a
// member, and so to no machine outside the cluster.
func (q *Requests) CheckSource(a netip.Addr) error {
	c := q.deps.config()
	if c == nil || c.Cluster == nil {
		return errors.New("this machine belongs to no cluster")
	}
	if err := checkCallerAddress(c, q.deps.ownAddresses(), a); err != nil {
		return err
	}
	if other := q.ledger.Current().MemberAtAddress("", a.String()); other != "" {
		return fmt.Errorf("its source address %s is that of machine %s; if %[2]s is gone, an operator removes it first (`orlopctl nodes remove %[2]s`)", a, other)
	}
	return nil
}
