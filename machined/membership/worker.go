package membership

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/membership/workerjoin"
	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// How a worker joins its cluster and renews its membership (docs/decisions/0028-joining.md).
// workerjoin.Next decides the next action; server.go is the side of the control plane.
//
//  1. The worker creates a key for each of its certificates and requests the signatures of a
//     control-plane machine: with its ticket the first time, with its machine certificate
//     afterwards.
//  2. It stores the certificates on STATE before any process uses them.
//  3. machined/converge passes them to apid and to the node's processes.

// State is the membership of a worker: topic "membership".
type State struct {
	Joined bool `json:"joined"` // the worker has the certificates of a member
	// a control-plane machine rejects its certificates as revoked
	Removed bool `json:"removed,omitempty"`
	// after the removal, the pods and the node of the worker have stopped
	PodsStopped bool `json:"podsStopped,omitempty"`
	// why the worker cannot join, or cannot renew its certificates
	Problem       string   `json:"problem,omitempty"`
	ControlPlanes []string `json:"controlPlanes,omitempty"` // machines that the worker calls
	// serial number of the ticket with which the worker joined
	Ticket  string    `json:"ticket,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // first expiry of its certificates
	Renews  time.Time `json:"renews,omitzero"`  // time of the next renewal

	Certs Certificates `json:"-"`
}

// Worker joins the cluster and renews its certificates, on a worker.
type Worker struct {
	State *cell.Cell[State] // written: the membership

	deps  *Deps
	peers *Peers
}

const (
	// minJoinBackoff is the delay after no control-plane machine has accepted the request, usually
	// because they have not booted yet. The delay doubles with each failure, up to maxJoinBackoff.
	minJoinBackoff = 3 * time.Second
	maxJoinBackoff = 2 * time.Minute
	// renewBackoff is the delay after a success if workerjoin.Next would renew the new certificates
	// at once.
	renewBackoff = time.Hour
	// joinTimeout bounds a round in which the worker calls each control-plane machine once. Each of
	// these machines may have to call the others three times (callAllTimeout).
	joinTimeout = 45 * time.Second
)

// Load reads the stored certificates of a worker, so that apid starts with them.
func (w *Worker) Load() {
	c := w.deps.config()
	if !c.IsWorker() || !w.deps.Installed {
		return
	}
	held, err := readCertificates(w.deps.Files.Certificates, w.deps.Identity())
	if err != nil { // then the worker has to join again
		w.deps.Event("membership", "failure", err.Error())
	}
	facts := w.facts(c, Addresses{}, held)
	w.publish(facts, workerjoin.Next(facts), held, controlPlanes(c), nil)
}

// facts returns the facts of a worker.
func (w *Worker) facts(c *config.Config, at Addresses, held Certificates) workerjoin.Facts {
	facts := workerjoin.Facts{
		Now: w.deps.Now(), Name: c.Machine.Metadata.Name, Addresses: at.reachable(c), Certificates: held.certificates(),
		MachineCAs: machineCAs(c), NodeCAs: nodeCAs(c),
	}
	if ticket := configuredTicket(c); !ticket.IsZero() {
		facts.Ticket = ticket.Cert.X509()
	} else {
		facts.JoinRequestsEnabled = c.Cluster.Spec.JoinRequests
	}
	return facts
}

// configuredTicket is the ticket of a worker's configuration; the zero CertKey if it has none.
func configuredTicket(c *config.Config) config.CertKey {
	if c.Machine.Spec.Join == nil {
		return config.CertKey{}
	}
	return c.Machine.Spec.Join.Ticket
}

// Run joins or renews whenever the action is due.
func (w *Worker) Run(ctx context.Context) {
	configs, states := w.deps.Config.Watch(), w.deps.Addresses.Watch()
	have, _ := w.State.Get()
	j := workerLoop{Worker: w, certs: have.Certs, backoff: minJoinBackoff}
	for {
		c, at := configs.Current(), states.Current()
		wait := ResyncInterval
		if c.IsWorker() && w.deps.Installed {
			wait = j.step(ctx, c, at)
		} else if have, _ := w.State.Get(); have.Joined || have.Problem != "" {
			w.State.Set(State{})
		}
		timer := time.NewTimer(wait)
		select {
		case <-configs.Changed():
		case <-states.Changed():
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// workerLoop is the state of Worker.Run between two steps.
type workerLoop struct {
	*Worker
	certs    Certificates
	backoff  time.Duration     // delay after the next failure
	rejected rejectedTicket    // ticket that is not tried at present
	approved *x509.Certificate // ticket for the machine key, from an approved join request
}

// step performs the action that is due and returns the time until the next step.
func (j *workerLoop) step(ctx context.Context, c *config.Config, at Addresses) time.Duration {
	facts := j.facts(c, at, j.certs)
	if facts.Ticket == nil && facts.JoinRequestsEnabled && j.approved != nil && j.approved.Subject.CommonName == facts.Name {
		facts.Ticket = j.approved
	}
	if j.rejected.has(facts.Ticket, facts.Now) {
		facts.Ticket = nil
	}
	step := workerjoin.Next(facts)
	j.publish(facts, step, j.certs, controlPlanes(c), nil)
	switch step.Action {
	case workerjoin.Idle:
		return ResyncInterval
	case workerjoin.RequestTicket:
		return j.requestTicket(ctx, c, facts, step)
	}
	return j.requestCertificates(ctx, c, facts, step)
}

// requestTicket sends a join request, and retains the ticket if an operator has approved the
// request. It returns the time until the next step.
func (j *workerLoop) requestTicket(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	ticket, waits, err := j.sendJoinRequests(ctx, c)
	if ticket != nil {
		until := ticket.NotAfter.UTC().Format(time.RFC3339)
		if facts.Now.Before(ticket.NotAfter) {
			j.approved = ticket
			j.deps.Event("membership", "operation", fmt.Sprintf("an operator has approved this machine, until %s", until))
			return 0
		}
		err = fmt.Errorf("an operator has approved this machine until %s, but its own clock shows %s: one of the clocks is wrong", until, facts.Now.UTC().Format(time.RFC3339))
	}
	j.publish(facts, step, j.certs, controlPlanes(c), err)
	if waits {
		return joinrequest.Interval
	}
	return max(joinrequest.Interval, j.nextBackoff())
}

// requestCertificates requests the certificates of a member, or renews them. It returns the time
// until the next step.
func (j *workerLoop) requestCertificates(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	got, err := j.signCertificates(ctx, step.Action, c, facts.Ticket, j.certs, facts.Addresses)
	if err == nil {
		err = got.store(j.deps.Files.Certificates)
	}
	wait := ResyncInterval
	if err != nil {
		wait = j.nextBackoff()
		if facts.Ticket == j.approved && facts.Ticket != nil && !step.Usable && j.backoff > joinrequest.Interval {
			j.approved = nil // the ticket may be revoked: send a join request again
		}
		if step.Usable && step.Action == workerjoin.Join && allRejected(err) {
			j.rejected = rejectedTicket{pki.Serial(facts.Ticket), facts.Now.Add(rejectedTicketRetry)}
		}
	} else {
		j.certs, j.backoff = got, minJoinBackoff
		j.deps.Event("membership", "operation", fmt.Sprintf("this machine has its certificates of cluster %s, until %s", c.Cluster.Metadata.Name, got.Machine.Cert.NotAfter.UTC().Format(time.RFC3339)))
		facts.Certificates = got.certificates()
		if step = workerjoin.Next(facts); step.Action != workerjoin.Idle {
			wait = renewBackoff
		}
	}
	j.publish(facts, step, j.certs, controlPlanes(c), err)
	return wait
}

// nextBackoff returns the present delay and doubles the next delay.
func (j *workerLoop) nextBackoff() time.Duration {
	now := j.backoff
	j.backoff = min(2*now, maxJoinBackoff)
	return now
}

// publish sets the membership topic if the state has changed.
func (w *Worker) publish(f workerjoin.Facts, s workerjoin.Decision, held Certificates, from []string, failed error) {
	next := State{Joined: s.Usable, Renews: s.Until, Certs: held, ControlPlanes: from}
	if f.Certificates.Machine != nil {
		next.Ticket, next.Expires = pki.TicketOf(f.Certificates.Machine), f.Certificates.Machine.NotAfter
	}
	switch {
	case failed != nil:
		next.Problem = failed.Error()
	case s.Reason != nil:
		next.Problem = s.Reason.Error()
	}
	have, _ := w.State.Get()
	if next.Removed = have.Removed && next.Certs.Machine == have.Certs.Machine; next.Removed && next.Problem == "" {
		next.Problem = have.Problem
	}
	next.PodsStopped = have.PodsStopped && next.Removed
	if failed == nil && s.Action != workerjoin.Idle && have.Problem != "" && next.Certs.Machine == have.Certs.Machine {
		return // the next attempt follows at once, and the last error has more information
	}
	same := have.Joined == next.Joined && have.Problem == next.Problem && have.Certs.Machine == next.Certs.Machine && have.Renews.Equal(next.Renews)
	if same {
		return
	}
	if next.Problem != "" && next.Problem != have.Problem {
		w.deps.Event("membership", "failure", next.Problem)
	}
	w.State.Set(next)
}

// rejectedTicket is a ticket that was rejected while the machine has valid certificates. The
// machine continues with these certificates, and tries the ticket again later.
type rejectedTicket struct {
	serial string
	until  time.Time
}

// rejectedTicketRetry is the delay before a rejected ticket is tried again. If a control-plane
// machine rejected the ticket because it had just booted, it has synced by then.
const rejectedTicketRetry = 10 * time.Minute

func (a rejectedTicket) has(ticket *x509.Certificate, now time.Time) bool {
	return ticket != nil && pki.Serial(ticket) == a.serial && now.Before(a.until)
}

// allRejected reports whether all machines that were called have answered, and have rejected the
// certificate or the request.
func allRejected(err error) bool {
	var all client.Failures
	if !errors.As(err, &all) {
		return false
	}
	return !slices.ContainsFunc(all, func(err error) bool {
		return !errors.Is(err, client.ErrRefused) && status.Code(err) != codes.FailedPrecondition
	})
}

// signCertificates requests new certificates from the control-plane machines, one after the other,
// until a machine signs them.
func (w *Worker) signCertificates(ctx context.Context, how workerjoin.Action, c *config.Config, ticket *x509.Certificate, held Certificates, addresses []netip.Addr) (Certificates, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	got, request, err := newCertificates(w.deps.Identity(), c.Machine.Metadata.Name)
	if err != nil {
		return Certificates{}, err
	}
	got.addresses = addresses
	endpoint := client.Endpoint{CA: MachinePool(c), Accepts: w.peers.checkControlPlane, Cert: w.clientCert(how, c, ticket, held)}
	answer, err := firstAnswer(ctx, controlPlanes(c), func(ctx context.Context, from string) (*api.JoinResponse, error) {
		endpoint := endpoint
		endpoint.Address = from
		return w.join(ctx, endpoint, request)
	})
	if err != nil {
		return Certificates{}, err
	}
	err = got.add(answer, c)
	return got, err
}

// clientCert returns the certificate that the worker presents: the ticket to join, its machine
// certificate to renew.
func (w *Worker) clientCert(how workerjoin.Action, c *config.Config, ticket *x509.Certificate, held Certificates) tls.Certificate {
	identity := w.deps.Identity()
	if how != workerjoin.Join {
		return tls.Certificate{Certificate: [][]byte{held.Machine.Cert.Raw}, PrivateKey: identity}
	}
	key := crypto.Signer(identity)
	if own := configuredTicket(c); !own.IsZero() {
		key = own.Key.Signer()
	}
	return tls.Certificate{Certificate: [][]byte{ticket.Raw}, PrivateKey: key}
}

// newCertificates creates the keys of a machine's certificates, and the request for their
// signatures.
func newCertificates(identity *ecdsa.PrivateKey, name string) (Certificates, *api.JoinRequest, error) {
	got, r := Certificates{Machine: &pki.Leaf{Key: identity}, Node: nodespec.IssuedCerts{}}, &api.JoinRequest{NodeCsrs: map[string][]byte{}}
	var err error
	if r.MachineCsr, err = pki.NewRequest(identity); err != nil {
		return got, nil, err
	}
	for _, l := range nodespec.NodeLeaves(name, nil) {
		key, err := pki.NewKey()
		if err != nil {
			return got, nil, err
		}
		got.Node[l.Cert] = &pki.Leaf{Key: key}
		if r.NodeCsrs[l.Cert], err = pki.NewRequest(key); err != nil {
			return got, nil, err
		}
	}
	return got, r, nil
}

// join requests the signatures of one control-plane machine.
func (w *Worker) join(ctx context.Context, e client.Endpoint, r *api.JoinRequest) (*api.JoinResponse, error) {
	conn, err := w.deps.Transport.Dial(ctx, e)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := conn.Cluster.Join(ctx, r)
	if err != nil {
		return nil, answerError{e.Address, err}
	}
	return answer, nil
}

// sendJoinRequests sends the request to all control-plane machines, because an operator can approve
// it at any of them, and returns the first ticket. waits is true if no operator has decided yet.
func (w *Worker) sendJoinRequests(ctx context.Context, c *config.Config) (ticket *x509.Certificate, waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	identity := w.deps.Identity()
	request := joinrequest.Request{Name: c.Machine.Metadata.Name}
	if request.CSR, err = pki.NewRequest(identity); err != nil {
		return nil, false, err
	}
	var problems []string
	from := controlPlanes(c)
	for i, address := range from {
		one, cancel := context.WithTimeout(ctx, timeoutFor(ctx, len(from)-i))
		answer, err := w.deps.Transport.RequestJoin(one, client.Endpoint{Address: address, CA: MachinePool(c), Accepts: w.peers.checkControlPlane}, request)
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
