package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Join requests of machines without a ticket (docs/decisions/0044-join-requests.md): an operator
// approves or denies them. An approved machine gets a ticket for the key that it sent; the join
// then proceeds as for any other machine (server.go, worker.go).

// joinRequests are the pending join requests at this control-plane machine. They are in memory
// only: the machines repeat them.
type joinRequests struct {
	sync.Mutex
	list          joinrequest.List
	addressLimits limits.Rates  // per address
	networkLimits limits.Rates  // per network: a rack of machines shares a network
	eventLimit    *rate.Limiter // events of first requests
}

func newJoinRequests() joinRequests {
	// A machine sends a request every ten seconds (joinrequest.Interval), and several machines may
	// share an address.
	return joinRequests{addressLimits: limits.Rates{Interval: 5 * time.Second, Burst: 20}, networkLimits: limits.Rates{Interval: 100 * time.Millisecond, Burst: 200}, eventLimit: rate.NewLimiter(rate.Every(10*time.Second), 10)}
}

// acceptsJoinRequests reports whether a configuration accepts requests of machines without a
// ticket.
func acceptsJoinRequests(c *config.Config) bool {
	return isControlPlane(c) && c.Cluster.Spec.JoinRequests
}

func (a apidAPI) RequestJoin(_ context.Context, r *api.RequestJoinRequest) (*api.RequestJoinResponse, error) {
	m, err := a.m.checkJoinRequest(r)
	if err != nil {
		return &api.RequestJoinResponse{State: string(joinrequest.Rejected), Reason: err.Error()}, nil
	}
	answer, known := a.m.answerJoinRequest(m)
	if !known && answer.State == joinrequest.Pending && a.m.joinRequests.eventLimit.Allow() {
		a.m.events.add("cluster", "operation", fmt.Sprintf("join request from %s for machine %s with key %s; an operator decides (`orlopctl nodes pending`)", m.Address, m.Name, m.Key))
	}
	return &api.RequestJoinResponse{State: string(answer.State), Certificate: answer.Certificate, Reason: answer.Reason}, nil
}

// answerJoinRequest returns the answer to a request and reports whether the machine has sent a
// request before.
func (m *machine) answerJoinRequest(asks joinrequest.Machine) (answer joinrequest.Answer, known bool) {
	requests := &m.joinRequests
	requests.Lock()
	defer requests.Unlock()
	old, known := requests.list[asks.Key]
	if len(old.Ticket) > 0 && !m.ticketUsable(old) {
		requests.list = requests.list.Approved(asks.Key, nil, time.Time{}) // its ticket was revoked
	}
	// If an admitted machine lost its power before it received the certificates, it gets its ticket
	// again while that is valid. No new approval is necessary.
	if member := m.ledger.current().HasMember(asks.Name); member && len(requests.list[asks.Key].Ticket) == 0 {
		return joinrequest.Answer{State: joinrequest.Rejected, Reason: nameTaken(asks.Name).Error()}, known
	}
	requests.list, answer = requests.list.Record(asks, time.Now())
	return answer, known
}

// checkJoinRequest returns the machine of a valid request. An invalid request does not reach an
// operator.
func (m *machine) checkJoinRequest(r *api.RequestJoinRequest) (joinrequest.Machine, error) {
	var out joinrequest.Machine
	if !m.joinRequests.addressLimits.Allow(limits.AddressOf(r.Peer).String()) || !m.joinRequests.networkLimits.Allow(limits.NetworkOf(r.Peer)) {
		return out, errors.New("too many requests from your address; wait a minute")
	}
	now, _ := m.config.Get()
	if !acceptsJoinRequests(now.config) {
		return out, client.ErrJoinRequestsDisabled
	}
	peer, err := netip.ParseAddrPort(r.Peer)
	if err != nil {
		return out, errors.New("cannot read the source address of the call")
	}
	addr := peer.Addr().Unmap()
	state, _ := m.networkState.Get()
	if err := checkCallerAddress(now.config, state, addr); err != nil {
		return out, err
	}
	key, err := pki.ParseRequest(r.Csr)
	if err != nil {
		return out, err
	}
	known := m.ledger.current()
	other := known.MemberAtAddress(r.Name, addr.String())
	switch err := config.Check(config.New(r.Name, config.RoleWorker)).Err(); {
	case err != nil:
		return out, fmt.Errorf("machine %.80q: cannot join: the name is invalid", r.Name)
	case reservedName(now.config, known, r.Name):
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
func (m *machine) ticketUsable(a joinrequest.Machine) bool {
	known := m.ledger.current()
	if known.HasKey(a.Key) {
		return true
	}
	cert, err := x509.ParseCertificate(a.Ticket)
	return err == nil && slices.ContainsFunc(known.OpenTickets(time.Now()), func(t trust.Ticket) bool { return t.Serial == pki.Serial(cert) })
}

// joinRequestsConfig returns the configuration of a control-plane machine that accepts join
// requests.
func (a clusterAPI) joinRequestsConfig() (*config.Config, error) {
	c, err := a.issuingConfig()
	if err == nil && !acceptsJoinRequests(c) {
		err = status.Error(codes.FailedPrecondition, "join requests are disabled: set Cluster.spec.joinRequests on all control-plane machines, or create a ticket (`orlopctl nodes add`)")
	}
	return c, err
}

func (a clusterAPI) ListPending(context.Context, *api.ListPendingRequest) (*api.ListPendingResponse, error) {
	if _, err := a.joinRequestsConfig(); err != nil {
		return nil, err
	}
	known, now := a.m.ledger.current(), time.Now()
	out := &api.ListPendingResponse{}
	a.m.joinRequests.Lock()
	defer a.m.joinRequests.Unlock()
	for _, m := range a.m.joinRequests.list.Pending(now) {
		if known.HasKey(m.Key) { // another control-plane machine approved it, and it has joined
			continue
		}
		out.Machines = append(out.Machines, &api.PendingMachine{Name: m.Name, Address: m.Address, Fingerprint: m.Key, Since: timestamppb.New(m.Since)})
	}
	return out, nil
}

// findJoinRequest returns the request that an operator names, or a status error.
func (a clusterAPI) findJoinRequest(name, fingerprint string) (joinrequest.Machine, error) {
	key, err := pki.ParseFingerprint(fingerprint)
	if err != nil {
		return joinrequest.Machine{}, status.Error(codes.InvalidArgument, err.Error())
	}
	a.m.joinRequests.Lock()
	defer a.m.joinRequests.Unlock()
	m, err := a.m.joinRequests.list.Find(name, key, time.Now())
	if err != nil {
		return m, status.Error(codes.FailedPrecondition, err.Error())
	}
	return m, nil
}

// Approve issues a ticket as CreateTicket does, for the key in the request.
func (a clusterAPI) Approve(ctx context.Context, r *api.ApproveRequest) (*api.ApproveResponse, error) {
	if _, err := a.joinRequestsConfig(); err != nil {
		return nil, err
	}
	m, err := a.findJoinRequest(r.Name, r.Fingerprint)
	if err != nil {
		return nil, err
	}
	if a.m.ledger.current().HasKey(m.Key) || len(m.Ticket) > 0 && a.m.ticketUsable(m) {
		setUnchanged(ctx)
		// it is approved already: the machine has not received the answer
		return &api.ApproveResponse{}, nil
	}
	ticket, err := a.CreateTicket(ctx, &api.CreateTicketRequest{Name: m.Name, Csr: m.Request, Ttl: r.Ttl})
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(ticket.Certificate)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the ticket cannot be read: %v", err)
	}
	requests := &a.m.joinRequests
	requests.Lock()
	requests.list = requests.list.Approved(m.Key, ticket.Certificate, cert.NotAfter)
	requests.Unlock()
	a.m.events.add("cluster", "operation", fmt.Sprintf("machine %s at %s is approved and joins with its next request: %s", m.Name, m.Address, m.Key))
	return &api.ApproveResponse{}, nil
}

func (a clusterAPI) Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	c, err := a.joinRequestsConfig()
	if err != nil {
		return nil, err
	}
	m, err := a.findJoinRequest(r.Name, r.Fingerprint)
	if err != nil {
		return nil, err
	}
	if len(m.Ticket) > 0 || a.m.ledger.current().HasKey(m.Key) {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %s: an operator has approved it already; `orlopctl nodes remove %s` revokes its ticket and removes the machine", m.Name, m.Name)
	}
	if err := a.m.joinRequests.deny([]string{m.Key}); err != nil {
		return nil, err
	}
	out := &api.DenyResponse{}
	vs := a.m.voters(c)
	_, out.Unreached, _ = a.m.replicate(ctx, vs.others, &api.ReplicateMembershipRequest{Denied: []string{m.Key}}, "", len(vs.others))
	a.m.events.add("cluster", "operation", fmt.Sprintf("machine %s at %s is denied: %s", m.Name, m.Address, m.Key))
	return out, nil
}

// deny records the keys of machines that an operator denies, here or at another control-plane
// machine.
func (a *joinRequests) deny(keys []string) error {
	for _, k := range keys {
		if _, err := pki.ParseFingerprint(k); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
	a.Lock()
	defer a.Unlock()
	for _, k := range keys {
		a.list = a.list.Denied(k, time.Now())
	}
	return nil
}

// sendJoinRequests sends the request to all control-plane machines, because an operator can approve
// it at any of them, and returns the first ticket. pending reports that an operator has to decide.
func (m *machine) sendJoinRequests(ctx context.Context, c *config.Config) (ticket *x509.Certificate, waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	identity := m.identity.Load().Key
	request := joinrequest.Request{Name: c.Machine.Metadata.Name}
	if request.CSR, err = pki.NewRequest(identity); err != nil {
		return nil, false, err
	}
	var problems []string
	from := controlPlanes(c)
	for i, address := range from {
		one, cancel := context.WithTimeout(ctx, timeoutFor(ctx, len(from)-i))
		answer, err := client.RequestJoin(one, client.Endpoint{Address: address, CA: machinePool(c), Accepts: m.checkControlPlane}, request)
		cancel()
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case answer.State == joinrequest.Pending:
			waits = true
		case answer.State == joinrequest.Approved:
			if ticket, err = x509.ParseCertificate(answer.Certificate); err == nil && !pki.Matches(ticket, identity) {
				err = errors.New("it is for another key")
			}
			if err == nil {
				return ticket, false, nil
			}
			problems = append(problems, fmt.Sprintf("%s: the ticket cannot be used: %v", address, err))
		default:
			problems = append(problems, fmt.Sprintf("%s: %s", address, answer.Reason))
		}
	}
	if waits {
		return nil, true, fmt.Errorf("waiting for an operator: `orlopctl nodes approve %s %s`", request.Name, pki.KeyFingerprint(&identity.PublicKey))
	}
	return nil, false, errors.New(strings.Join(problems, "; "))
}
