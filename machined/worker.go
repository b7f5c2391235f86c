package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
	"github.com/orlop-os/orlop/pkg/workerjoin"
)

// How a worker joins its cluster and renews its membership (docs/decisions/0028-joining.md).
// workerjoin.Next decides the next action; server.go is the side of the control plane.
//
//  1. The worker creates a key for each of its certificates and requests the signatures of a
//     control-plane machine: with its ticket the first time, with its machine certificate
//     afterwards.
//  2. It stores the certificates on STATE before any process uses them.
//  3. reconcile.go passes them to apid and to the node's processes.

// membershipState is the membership of a worker: topic "membership".
type membershipState struct {
	Joined bool `json:"joined"` // it has the certificates of a member
	// a control-plane machine rejects its certificates as revoked
	Removed bool `json:"removed,omitempty"`
	// after the removal, its pods have stopped and its node has stopped
	PodsStopped bool `json:"podsStopped,omitempty"`
	// why it cannot join, or cannot renew its certificates
	Problem       string   `json:"problem,omitempty"`
	ControlPlanes []string `json:"controlPlanes,omitempty"` // control-plane machines that it calls
	// serial number of the ticket with which it joined
	Ticket  string    `json:"ticket,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // first expiry of its certificates
	Renews  time.Time `json:"renews,omitzero"`  // time of the next renewal

	certs memberCertificates
}

// memberCertificates are the certificates of a member. The value is always replaced as a whole.
type memberCertificates struct {
	machine   *pki.Leaf
	node      credentials.IssuedLeaves
	addresses []netip.Addr // addresses of the machine at the time of the request
}

func (h memberCertificates) certificates() workerjoin.Certificates {
	if h.machine == nil {
		return workerjoin.Certificates{}
	}
	out := workerjoin.Certificates{Machine: h.machine.Cert, Addresses: h.addresses}
	for _, l := range h.node {
		out.Node = append(out.Node, l.Cert)
	}
	return out
}

// storedCertificates is memberCertificates on STATE. The machine key is in a file of its own.
type storedCertificates struct {
	Machine   string                       `json:"machine"` // PEM
	Node      map[string]storedCertificate `json:"node"`
	Addresses []netip.Addr                 `json:"addresses"`
}

type storedCertificate struct {
	Cert string `json:"cert"` // PEM
	Key  string `json:"key"`  // PEM
}

// readCertificates reads the stored certificates; the zero value if the file does not exist.
func readCertificates(file string, identity *ecdsa.PrivateKey) (memberCertificates, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return memberCertificates{}, nil
	}
	var s storedCertificates
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	h := memberCertificates{node: credentials.IssuedLeaves{}, addresses: s.Addresses}
	if err == nil {
		h.machine, err = pki.ParseLeaf([]byte(s.Machine), pki.EncodeKey(identity))
	}
	for name, l := range s.Node {
		if err == nil {
			h.node[name], err = pki.ParseLeaf([]byte(l.Cert), []byte(l.Key))
		}
	}
	if err != nil {
		return memberCertificates{}, fmt.Errorf("membership: %s cannot be used: %w", file, err)
	}
	return h, nil
}

func (h memberCertificates) store(file string) error {
	s := storedCertificates{Machine: string(h.machine.CertPEM()), Node: map[string]storedCertificate{}, Addresses: h.addresses}
	for name, l := range h.node {
		s.Node[name] = storedCertificate{string(l.CertPEM()), string(l.KeyPEM())}
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("membership: cannot store the certificates: %w", err)
	}
	return nil
}

// isWorker reports whether a configuration makes the machine a worker of a cluster.
func isWorker(c *config.Config) bool {
	return c != nil && c.Cluster != nil && c.Machine.Spec.Role == config.RoleWorker
}

// isControlPlane reports whether a configuration makes the machine a control-plane machine.
func isControlPlane(c *config.Config) bool { return c != nil && c.Cluster != nil && !isWorker(c) }

const (
	// minJoinBackoff is the delay after a control-plane machine has rejected the request or did not
	// answer: usually it has not booted yet. The delay doubles with each failure, up to
	// maxJoinBackoff.
	minJoinBackoff = 3 * time.Second
	maxJoinBackoff = 2 * time.Minute
	// renewBackoff is the delay after a success if workerjoin.Next would still renew.
	renewBackoff = time.Hour
	// joinTimeout bounds the calls of all control-plane machines once. Each of them may have to
	// call the others three times (callAllTimeout).
	joinTimeout = 45 * time.Second
)

// loadMembership reads the stored certificates of a worker, so that apid starts with them.
func (m *machine) loadMembership() {
	now, _ := m.config.Get()
	if !isWorker(now.config) || m.bootMedium != "" {
		return
	}
	held, err := readCertificates(paths.Membership, m.identity.Load().Key)
	if err != nil { // then it has to join again
		m.events.add("membership", "failure", err.Error())
	}
	facts := membershipFacts(now.config, network.State{}, held)
	m.publishMembership(facts, workerjoin.Next(facts), held, controlPlanes(now.config), nil)
}

// membershipFacts returns the facts of a worker.
func membershipFacts(c *config.Config, state network.State, held memberCertificates) workerjoin.Facts {
	facts := workerjoin.Facts{
		Now: time.Now(), Name: c.Machine.Metadata.Name, Addresses: nodeAddresses(c, state), Certificates: held.certificates(),
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

// runMembership joins and renews whenever it is due.
func (m *machine) runMembership(ctx context.Context) {
	configs, states := m.config.Watch(), m.networkState.Watch()
	have, _ := m.membership.Get()
	j := membershipLoop{machine: m, certs: have.certs, backoff: minJoinBackoff}
	for {
		c, state := configs.Current(), states.Current()
		wait := resyncInterval
		if isWorker(c.config) && m.bootMedium == "" {
			wait = j.step(ctx, c.config, state)
		} else if have, _ := m.membership.Get(); have.Joined || have.Problem != "" {
			m.membership.Set(membershipState{})
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

// membershipLoop is the state of runMembership between two steps.
type membershipLoop struct {
	*machine
	certs    memberCertificates
	backoff  time.Duration     // delay after the next failure
	rejected rejectedTicket    // rejected ticket
	approved *x509.Certificate // ticket that an operator approved, for the machine key
}

// step performs the action that is due and returns the time until the next step.
func (j *membershipLoop) step(ctx context.Context, c *config.Config, state network.State) time.Duration {
	facts := membershipFacts(c, state, j.certs)
	if facts.Ticket == nil && facts.JoinRequestsEnabled && j.approved != nil && j.approved.Subject.CommonName == facts.Name {
		facts.Ticket = j.approved
	}
	if j.rejected.has(facts.Ticket, facts.Now) {
		facts.Ticket = nil
	}
	step := workerjoin.Next(facts)
	j.publishMembership(facts, step, j.certs, controlPlanes(c), nil)
	switch step.Action {
	case workerjoin.Idle:
		return resyncInterval
	case workerjoin.RequestTicket:
		return j.requestTicket(ctx, c, facts, step)
	}
	return j.requestCertificates(ctx, c, facts, step)
}

// requestTicket sends a join request and reports whether an operator has approved it.
func (j *membershipLoop) requestTicket(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	ticket, waits, err := j.sendJoinRequests(ctx, c)
	if ticket != nil {
		until := ticket.NotAfter.UTC().Format(time.RFC3339)
		if facts.Now.Before(ticket.NotAfter) {
			j.approved = ticket
			j.events.add("membership", "operation", fmt.Sprintf("an operator has approved this machine, until %s", until))
			return 0
		}
		err = fmt.Errorf("an operator has approved this machine until %s, but its own clock shows %s: one of the clocks is wrong", until, facts.Now.UTC().Format(time.RFC3339))
	}
	j.publishMembership(facts, step, j.certs, controlPlanes(c), err)
	if waits {
		return joinrequest.Interval
	}
	return max(joinrequest.Interval, j.nextBackoff())
}

// requestCertificates requests the certificates of a member, or renews them.
func (j *membershipLoop) requestCertificates(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	got, err := j.signCertificates(ctx, step.Action, c, facts.Ticket, j.certs, facts.Addresses)
	if err == nil {
		err = got.store(paths.Membership)
	}
	wait := resyncInterval
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
		j.events.add("membership", "operation", fmt.Sprintf("this machine has its certificates of cluster %s, until %s", c.Cluster.Metadata.Name, got.machine.Cert.NotAfter.UTC().Format(time.RFC3339)))
		facts.Certificates = got.certificates()
		if step = workerjoin.Next(facts); step.Action != workerjoin.Idle {
			wait = renewBackoff
		}
	}
	j.publishMembership(facts, step, j.certs, controlPlanes(c), err)
	return wait
}

// nextBackoff returns the present delay and doubles the next delay.
func (j *membershipLoop) nextBackoff() time.Duration {
	now := j.backoff
	j.backoff = min(2*now, maxJoinBackoff)
	return now
}

// publishMembership sets the membership topic if the state has changed.
func (m *machine) publishMembership(f workerjoin.Facts, s workerjoin.Decision, held memberCertificates, from []string, failed error) {
	next := membershipState{Joined: s.Usable, Renews: s.Until, certs: held, ControlPlanes: from}
	if f.Certificates.Machine != nil {
		next.Ticket, next.Expires = pki.TicketOf(f.Certificates.Machine), f.Certificates.Machine.NotAfter
	}
	switch {
	case failed != nil:
		next.Problem = failed.Error()
	case s.Reason != nil:
		next.Problem = s.Reason.Error()
	}
	have, _ := m.membership.Get()
	if next.Removed = have.Removed && next.certs.machine == have.certs.machine; next.Removed && next.Problem == "" {
		next.Problem = have.Problem
	}
	next.PodsStopped = have.PodsStopped && next.Removed
	if failed == nil && s.Action != workerjoin.Idle && have.Problem != "" && next.certs.machine == have.certs.machine {
		return // the next attempt follows at once, and the last error has more information
	}
	same := have.Joined == next.Joined && have.Problem == next.Problem && have.certs.machine == next.certs.machine && have.Renews.Equal(next.Renews)
	if same {
		return
	}
	if next.Problem != "" && next.Problem != have.Problem {
		m.events.add("membership", "failure", next.Problem)
	}
	m.membership.Set(next)
}

// rejectedTicket is a ticket that was rejected while the machine has valid certificates: it
// continues with them and tries the ticket again later.
type rejectedTicket struct {
	serial string
	until  time.Time
}

// rejectedTicketRetry is the delay before a rejected ticket is tried again: a control-plane machine
// that rejected it because it had just booted has synced by then.
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

// clearRemoved records that all control-plane machines have accepted the certificates of this
// worker: it is not removed.
func (m *machine) clearRemoved() {
	m.membership.Update(func(s membershipState) membershipState {
		if s.Removed {
			s.Removed, s.PodsStopped, s.Problem = false, false, ""
		}
		return s
	})
}

// recordRemoved records that a control-plane machine has rejected a certificate of this worker as
// revoked, in a call over an existing connection or at the next dial. A rejection of earlier
// certificates has no effect: the worker may have joined again meanwhile.
func (m *machine) recordRemoved(refused error) {
	// A server that has not proved its identity can put any text into its certificates, and so into
	// the error about them.
	if refused == nil || errors.Is(refused, client.ErrUntrusted) || errors.Is(refused, client.ErrUnreachable) ||
		!errors.Is(refused, client.ErrRevoked) && !strings.Contains(refused.Error(), trust.RevokedPrefix) {
		return
	}
	var call failedCall
	_ = errors.As(refused, &call) // of another error, the certificate is unknown
	m.membership.Update(func(s membershipState) membershipState {
		if held := s.certs.machine; held != nil && len(call.cert) > 0 && !bytes.Equal(call.cert, held.Cert.Raw) {
			return s
		}
		if !s.Removed {
			s.Removed, s.Problem = true, "this machine was removed from the cluster: "+refused.Error()
		}
		return s
	})
}

// signCertificates requests new certificates from the control-plane machines, in turn until a
// machine signs them.
func (m *machine) signCertificates(ctx context.Context, how workerjoin.Action, c *config.Config, ticket *x509.Certificate, held memberCertificates, addresses []netip.Addr) (memberCertificates, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	identity := m.identity.Load().Key
	endpoint := client.Endpoint{CA: machinePool(c), Accepts: m.checkControlPlane}
	if how == workerjoin.Join {
		key := crypto.Signer(identity)
		if own := configuredTicket(c); !own.IsZero() {
			key = own.Key.Signer()
		}
		endpoint.Cert = tls.Certificate{Certificate: [][]byte{ticket.Raw}, PrivateKey: key}
	} else {
		endpoint.Cert = tls.Certificate{Certificate: [][]byte{held.machine.Cert.Raw}, PrivateKey: identity}
	}
	request := &api.JoinRequest{NodeCsrs: map[string][]byte{}}
	var err error
	if request.MachineCsr, err = pki.NewRequest(identity); err != nil {
		return memberCertificates{}, err
	}
	got := memberCertificates{machine: &pki.Leaf{Key: identity}, node: credentials.IssuedLeaves{}, addresses: addresses}
	for _, l := range credentials.NodeLeaves(c.Machine.Metadata.Name, nil) {
		key, err := pki.NewKey()
		if err != nil {
			return memberCertificates{}, err
		}
		got.node[l.Cert] = &pki.Leaf{Key: key}
		if request.NodeCsrs[l.Cert], err = pki.NewRequest(key); err != nil {
			return memberCertificates{}, err
		}
	}
	answer, err := firstAnswer(ctx, controlPlanes(c), func(ctx context.Context, from string) (*api.JoinResponse, error) {
		endpoint := endpoint
		endpoint.Address = from
		conn, err := client.Dial(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		answer, err := conn.Cluster.Join(ctx, request)
		if err != nil {
			return nil, answerError{from, err}
		}
		return answer, nil
	})
	if err != nil {
		return memberCertificates{}, err
	}
	return got, got.add(answer, c)
}

// peerTimeout bounds the call of one machine if others follow.
const peerTimeout = 15 * time.Second

// timeoutFor is the timeout for the next of left machines.
func timeoutFor(ctx context.Context, left int) time.Duration {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		return min(peerTimeout, time.Until(end)/time.Duration(left))
	}
	return peerTimeout
}

// firstAnswer calls the machines in turn until a call succeeds, and leaves time for the calls of
// the others.
func firstAnswer(ctx context.Context, all []string, call func(ctx context.Context, from string) (*api.JoinResponse, error)) (*api.JoinResponse, error) {
	var problems client.Failures
	for i, from := range all {
		callCtx, cancel := context.WithTimeout(ctx, timeoutFor(ctx, len(all)-i))
		answer, err := call(callCtx, from)
		cancel()
		if err == nil {
			return answer, nil
		}
		problems = append(problems, err)
	}
	return nil, problems
}

// answerError is an error status that a machine has returned.
type answerError struct {
	from string
	err  error // with a status
}

func (e answerError) Error() string { return e.from + ": " + status.Convert(e.err).Message() }

func (e answerError) Unwrap() error { return e.err }

// controlPlanes are the machines that a worker can call, in order: the machines that stored the
// ticket when it was issued, then the other machines of the control plane; if the configuration
// names no machine, the host of the cluster's endpoint.
func controlPlanes(c *config.Config) []string {
	var out []string
	if join := c.Machine.Spec.Join; join != nil {
		out = slices.Clone(join.From)
	}
	for _, a := range c.Cluster.Spec.ControlPlanes {
		if !slices.Contains(out, a.String()) {
			out = append(out, a.String())
		}
	}
	if len(out) == 0 {
		out = append(out, c.Cluster.Spec.Endpoint.Host)
	}
	return out
}

// add stores the signed certificates beside their keys after it has verified them.
func (h memberCertificates) add(answer *api.JoinResponse, c *config.Config) error {
	read := func(l *pki.Leaf, der []byte, cas []*x509.Certificate) (err error) {
		if l.Cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
		if !pki.Matches(l.Cert, l.Key) {
			return errors.New("it is for another key")
		}
		if !pki.SignedBy(l.Cert, cas...) {
			return errors.New("it belongs to another cluster")
		}
		return nil
	}
	if err := read(h.machine, answer.MachineCertificate, machineCAs(c)); err != nil {
		return fmt.Errorf("membership: the machine's certificate cannot be used: %w", err)
	}
	for name, l := range h.node {
		if err := read(l, answer.NodeCertificates[name], nodeCAs(c)); err != nil {
			return fmt.Errorf("membership: %s cannot be used: %w", name, err)
		}
	}
	return nil
}
