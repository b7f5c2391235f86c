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
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Machines that come without a ticket (docs/decisions/0044-join-requests.md): those ask, and an
// operator decides. What one that is approved gets is a ticket, for the key that it has shown; from
// there it goes as with every other (members.go, membership.go).

// applicants are those that ask this control-plane machine. They are in memory alone: they ask
// again.
type applicants struct {
	sync.Mutex
	list  joinrequest.List
	tries tries         // of each address
	wide  tries         // of each network: a rack of machines shares one
	news  *rate.Limiter // events of those that ask for the first time
}

func newApplicants() applicants {
	// A machine asks every ten seconds (joinrequest.Every), and several may come from one address.
	return applicants{tries: tries{each: 5 * time.Second, atOnce: 20}, wide: tries{each: 100 * time.Millisecond, atOnce: 200}, news: rate.NewLimiter(rate.Every(10*time.Second), 10)}
}

// takesRequests tells whether machines without a ticket may ask this one.
func takesRequests(c *config.Config) bool { return controls(c) && c.Cluster.Spec.JoinRequests }

func (a doorAPI) Ask(_ context.Context, r *api.AskRequest) (*api.AskResponse, error) {
	m, err := a.m.applicant(r)
	if err != nil {
		return &api.AskResponse{Standing: string(joinrequest.Rejected), Reason: err.Error()}, nil
	}
	answer, known := a.m.answer(m)
	if !known && answer.State == joinrequest.Pending && a.m.asking.news.Allow() {
		a.m.events.add("cluster", "op", fmt.Sprintf("a machine at %s asks to join as %s; its key is %s; an operator decides (`orlopctl nodes pending`)", m.Address, m.Name, m.Key))
	}
	return &api.AskResponse{Standing: string(answer.State), Certificate: answer.Certificate, Reason: answer.Reason}, nil
}

// answer is what a machine hears that asks, and whether it has asked before.
func (m *machine) answer(asks joinrequest.Machine) (answer joinrequest.Answer, known bool) {
	desk := &m.asking
	desk.Lock()
	defer desk.Unlock()
	old, known := desk.list[asks.Key]
	if len(old.Ticket) > 0 && !m.stillOpen(old) {
		desk.list = desk.list.Approved(asks.Key, nil, time.Time{}) // it was taken back
	}
	// One that was let in, and lost its power before it had what it was given, has its ticket again
	// as long as that is good. It asks nobody anew.
	if member := m.book.known().HasMember(asks.Name); member && len(desk.list[asks.Key].Ticket) == 0 {
		return joinrequest.Answer{State: joinrequest.Rejected, Reason: nameTaken(asks.Name).Error()}, known
	}
	desk.list, answer = desk.list.Record(asks, time.Now())
	return answer, known
}

// applicant is what a request says, or why no operator is asked about it.
func (m *machine) applicant(r *api.AskRequest) (joinrequest.Machine, error) {
	var out joinrequest.Machine
	if !m.asking.tries.allowed(addressOf(r.Peer).String()) || !m.asking.wide.allowed(networkOf(r.Peer)) {
		return out, errors.New("there were too many requests from your address; wait a minute")
	}
	now, _ := m.config.Get()
	if !takesRequests(now.config) {
		return out, client.ErrJoinRequestsDisabled
	}
	peer, err := netip.ParseAddrPort(r.Peer)
	if err != nil {
		return out, errors.New("the address that you call from cannot be read")
	}
	addr := peer.Addr().Unmap()
	state, _ := m.networkState.Get()
	if err := notItsOwn(now.config, state, addr); err != nil {
		return out, err
	}
	key, err := pki.ParseRequest(r.Request)
	if err != nil {
		return out, err
	}
	known := m.book.known()
	other := known.MemberAtAddress(r.Name, addr.String())
	switch err := config.Check(config.New(r.Name, config.RoleWorker)).Err(); {
	case err != nil:
		return out, fmt.Errorf("machine %.80q: cannot join: it is no name of a machine", r.Name)
	case reservedName(now.config, known, r.Name):
		return out, fmt.Errorf("machine %s: cannot join: it is the name of the control plane", r.Name)
	case other != "":
		return out, fmt.Errorf("machine %s: cannot join: the address that it calls from, %s, is that of machine %[3]s; a machine asks for itself, and no pod does; if %[3]s is gone, an operator takes it out first (`orlopctl nodes remove %[3]s`)", r.Name, addr, other)
	case known.HasMember(r.Name) && !known.HasKey(pki.KeyFingerprint(key)):
		return out, nameTaken(r.Name)
	}
	return joinrequest.Machine{Name: r.Name, Address: addr.String(), Key: pki.KeyFingerprint(key), Request: r.Request}, nil
}

// nameTaken is why a machine cannot join by a name.
func nameTaken(name string) error {
	return fmt.Errorf("machine %s: cannot join: there is one of this name in the cluster; an operator takes it out first (`orlopctl nodes remove %s`)", name, name)
}

// stillOpen tells whether the machine can come, or has come, by the ticket that it was given.
func (m *machine) stillOpen(a joinrequest.Machine) bool {
	known := m.book.known()
	if known.HasKey(a.Key) {
		return true
	}
	cert, err := x509.ParseCertificate(a.Ticket)
	return err == nil && slices.ContainsFunc(known.OpenTickets(time.Now()), func(t trust.Ticket) bool { return t.Serial == pki.Serial(cert) })
}

// judging is the configuration of a control-plane machine that is asked.
func (a clusterAPI) judging() (*config.Config, error) {
	c, err := a.issuing()
	if err == nil && !takesRequests(c) {
		err = status.Error(codes.FailedPrecondition, "no machine can ask to be let in: set Cluster.spec.joinRequests on all control-plane machines, or give it a ticket (`orlopctl nodes add`)")
	}
	return c, err
}

func (a clusterAPI) Pending(context.Context, *api.PendingRequest) (*api.PendingResponse, error) {
	if _, err := a.judging(); err != nil {
		return nil, err
	}
	known, now := a.m.book.known(), time.Now()
	out := &api.PendingResponse{}
	a.m.asking.Lock()
	defer a.m.asking.Unlock()
	for _, m := range a.m.asking.list.Pending(now) {
		if known.HasKey(m.Key) { // it was approved at another control-plane machine, and has come
			continue
		}
		out.Machines = append(out.Machines, &api.Applicant{Name: m.Name, Address: m.Address, Fingerprint: m.Key, Since: timestamppb.New(m.Since)})
	}
	return out, nil
}

// asks is the machine that an operator names, and that asks here, or why there is none as a status.
func (a clusterAPI) asks(name, fingerprint string) (joinrequest.Machine, error) {
	key, err := pki.ParseFingerprint(fingerprint)
	if err != nil {
		return joinrequest.Machine{}, status.Error(codes.InvalidArgument, err.Error())
	}
	a.m.asking.Lock()
	defer a.m.asking.Unlock()
	m, err := a.m.asking.list.Find(name, key, time.Now())
	if err != nil {
		return m, status.Error(codes.FailedPrecondition, err.Error())
	}
	return m, nil
}

// Approve issues a ticket as for any other machine (Invite), but for the key that was shown.
func (a clusterAPI) Approve(ctx context.Context, r *api.ApproveRequest) (*api.ApproveResponse, error) {
	if _, err := a.judging(); err != nil {
		return nil, err
	}
	m, err := a.asks(r.Name, r.Fingerprint)
	if err != nil {
		return nil, err
	}
	if a.m.book.known().HasKey(m.Key) || len(m.Ticket) > 0 && a.m.stillOpen(m) {
		didNothing(ctx)
		// it was let in already: whoever asks again has had no answer
		return &api.ApproveResponse{}, nil
	}
	ticket, err := a.Invite(ctx, &api.InviteRequest{Name: m.Name, Request: m.Request, Life: r.Life})
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(ticket.Certificate)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the ticket cannot be read: %v", err)
	}
	desk := &a.m.asking
	desk.Lock()
	desk.list = desk.list.Approved(m.Key, ticket.Certificate, cert.NotAfter)
	desk.Unlock()
	a.m.events.add("cluster", "op", fmt.Sprintf("machine %s at %s is let in when it asks next: %s", m.Name, m.Address, m.Key))
	return &api.ApproveResponse{}, nil
}

func (a clusterAPI) Deny(ctx context.Context, r *api.DenyRequest) (*api.DenyResponse, error) {
	c, err := a.judging()
	if err != nil {
		return nil, err
	}
	m, err := a.asks(r.Name, r.Fingerprint)
	if err != nil {
		return nil, err
	}
	if len(m.Ticket) > 0 || a.m.book.known().HasKey(m.Key) {
		return nil, status.Errorf(codes.FailedPrecondition, "machine %s: an operator has let it in already; `orlopctl nodes remove %s` takes back its ticket, and the machine out", m.Name, m.Name)
	}
	if err := a.m.asking.deny([]string{m.Key}); err != nil {
		return nil, err
	}
	out := &api.DenyResponse{}
	of := a.m.electorate(c)
	_, out.Unaware, _ = a.m.tell(ctx, of.others, &api.TellRequest{Denied: []string{m.Key}}, "", len(of.others))
	a.m.events.add("cluster", "op", fmt.Sprintf("machine %s at %s is not let in: %s", m.Name, m.Address, m.Key))
	return out, nil
}

// deny notes the keys of machines that an operator does not let in, here or at another
// control-plane machine.
func (a *applicants) deny(keys []string) error {
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

// askForTicket asks all control-plane machines, each of which an operator may have told, and
// returns the ticket of the first that has one. Otherwise it says how it stands. waits: an operator
// has to decide.
func (m *machine) askForTicket(ctx context.Context, c *config.Config) (ticket *x509.Certificate, waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	identity := m.identity.Load().Key
	request := joinrequest.Request{Name: c.Machine.Metadata.Name}
	if request.CSR, err = pki.NewRequest(identity); err != nil {
		return nil, false, err
	}
	var problems []string
	from := controlPlanes(c)
	for i, address := range from {
		one, cancel := context.WithTimeout(ctx, part(ctx, len(from)-i))
		answer, err := client.RequestJoin(one, client.Endpoint{Address: address, CA: machinePool(c), Accepts: m.controlsStill}, request)
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
		return nil, true, fmt.Errorf("it waits for an operator: `orlopctl nodes approve %s %s`", request.Name, pki.KeyFingerprint(&identity.PublicKey))
	}
	return nil, false, errors.New(strings.Join(problems, "; "))
}
