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
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/joinrequest"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
	"github.com/orlop-os/orlop/pkg/workerjoin"
)

// How a worker becomes one of its cluster, and stays it (docs/decisions/0028-joining.md). What to
// do next is decided by workerjoin.Next; members.go is the other side, on a control-plane machine.
//
//  1. It makes a key for each of its certificates, and asks a control-plane machine to sign them: by its ticket the first time, by its
//     machine certificate afterwards.
//  2. What it has got lies on STATE before anything uses it.
//  3. follow.go gives apid and the node's processes their parts of it.

// membershipState is what there is to say about it: topic "membership".
type membershipState struct {
	Joined bool `json:"joined"` // it has what one of the cluster has
	// a control-plane machine says that it counts no more
	Removed bool `json:"removed,omitempty"`
	// after that, its pods have ended and its node has stopped
	Ended bool `json:"ended,omitempty"`
	// what keeps it from joining, or from renewing what it has
	Problem string    `json:"problem,omitempty"`
	From    []string  `json:"from,omitempty"`   // the control-plane machines that it asks
	Ticket  string    `json:"ticket,omitempty"` // serial number of the ticket by which it came
	Expires time.Time `json:"expires,omitzero"` // when what it has ends
	Renews  time.Time `json:"renews,omitzero"`  // when it asks for new ones

	held heldLeaves
}

// heldLeaves is what the machine has got. It is one value, written as a whole.
type heldLeaves struct {
	machine   *pki.Leaf
	node      credentials.IssuedLeaves
	addresses []netip.Addr // of the machine, when it asked for them
}

func (h heldLeaves) certificates() workerjoin.Certificates {
	if h.machine == nil {
		return workerjoin.Certificates{}
	}
	out := workerjoin.Certificates{Machine: h.machine.Cert, Addresses: h.addresses}
	for _, l := range h.node {
		out.Node = append(out.Node, l.Cert)
	}
	return out
}

// storedLeaves is heldLeaves on STATE. The machine's own key lies elsewhere.
type storedLeaves struct {
	Machine   string                `json:"machine"` // PEM
	Node      map[string]storedLeaf `json:"node"`
	Addresses []netip.Addr          `json:"addresses"`
}

type storedLeaf struct {
	Cert string `json:"cert"` // PEM
	Key  string `json:"key"`  // PEM
}

// readHeld reads what was stored; nothing where nothing was.
func readHeld(file string, identity *ecdsa.PrivateKey) (heldLeaves, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return heldLeaves{}, nil
	}
	var s storedLeaves
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	h := heldLeaves{node: credentials.IssuedLeaves{}, addresses: s.Addresses}
	if err == nil {
		h.machine, err = pki.ParseLeaf([]byte(s.Machine), pki.EncodeKey(identity))
	}
	for name, l := range s.Node {
		if err == nil {
			h.node[name], err = pki.ParseLeaf([]byte(l.Cert), []byte(l.Key))
		}
	}
	if err != nil {
		return heldLeaves{}, fmt.Errorf("membership: %s cannot be used: %w", file, err)
	}
	return h, nil
}

func (h heldLeaves) store(file string) error {
	s := storedLeaves{Machine: string(h.machine.CertPEM()), Node: map[string]storedLeaf{}, Addresses: h.addresses}
	for name, l := range h.node {
		s.Node[name] = storedLeaf{string(l.CertPEM()), string(l.KeyPEM())}
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = durable.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("membership: cannot keep the certificates: %w", err)
	}
	return nil
}

// worker tells whether a configuration makes the machine a worker of a cluster.
func worker(c *config.Config) bool {
	return c != nil && c.Cluster != nil && c.Machine.Spec.Role == config.RoleWorker
}

// controls tells whether a configuration makes the machine one of a cluster's control plane.
func controls(c *config.Config) bool { return c != nil && c.Cluster != nil && !worker(c) }

const (
	// askAgain is how long it rests after a control-plane machine has refused, or did not answer:
	// what is wrong is usually that it is not up yet. Each time after that it rests twice as long,
	// up to askSeldom.
	askAgain  = 3 * time.Second
	askSeldom = 2 * time.Minute
	// calm is how long it rests when it has got what it asked for, and would ask for more.
	calm = time.Hour
	// askTimeout bounds asking all of them once. Each may have to ask the others three times
	// (agreeTime).
	askTimeout = 45 * time.Second
)

// loadMembership reads what a worker has got before, so that its door opens with it.
func (m *machine) loadMembership() {
	now, _ := m.config.Get()
	if !worker(now.config) || m.medium != "" {
		return
	}
	held, err := readHeld(paths.Membership, m.identity.Load().Key)
	if err != nil { // then it has to join again
		m.events.add("membership", "failure", err.Error())
	}
	facts := membershipFacts(now.config, network.State{}, held)
	m.tellMembership(facts, workerjoin.Next(facts), held, controlPlanes(now.config), nil)
}

// membershipFacts are those of a worker.
func membershipFacts(c *config.Config, state network.State, held heldLeaves) workerjoin.Facts {
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

// configuredTicket is the ticket of a worker's configuration; the zero CertKey where it has none.
func configuredTicket(c *config.Config) config.CertKey {
	if c.Machine.Spec.Join == nil {
		return config.CertKey{}
	}
	return c.Machine.Spec.Join.Ticket
}

// followMembership joins, and renews, whenever it is time.
func (m *machine) followMembership(ctx context.Context) {
	configs, states := m.config.Watch(), m.networkState.Watch()
	have, _ := m.membership.Get()
	j := joiner{machine: m, held: have.held, pause: askAgain}
	for {
		c, state := configs.Current(), states.Current()
		wait := lookAgain
		if worker(c.config) && m.medium == "" {
			wait = j.turn(ctx, c.config, state)
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

// joiner is a worker that becomes one of its cluster, and stays it, with what it remembers from one
// turn to the next.
type joiner struct {
	*machine
	held     heldLeaves
	pause    time.Duration     // until it asks again, when it is refused now
	refused  setAside          // the ticket that was
	approved *x509.Certificate // the ticket that an operator has given it, for its own key
}

// turn does what is due, and returns how long nothing else will be.
func (j *joiner) turn(ctx context.Context, c *config.Config, state network.State) time.Duration {
	facts := membershipFacts(c, state, j.held)
	if facts.Ticket == nil && facts.JoinRequestsEnabled && j.approved != nil && j.approved.Subject.CommonName == facts.Name {
		facts.Ticket = j.approved
	}
	if j.refused.has(facts.Ticket, facts.Now) {
		facts.Ticket = nil
	}
	step := workerjoin.Next(facts)
	j.tellMembership(facts, step, j.held, controlPlanes(c), nil)
	switch step.Action {
	case workerjoin.Idle:
		return lookAgain
	case workerjoin.RequestTicket:
		return j.wantTicket(ctx, c, facts, step)
	}
	return j.wantCertificates(ctx, c, facts, step)
}

// wantTicket asks whether an operator lets this machine in.
func (j *joiner) wantTicket(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	ticket, waits, err := j.askForTicket(ctx, c)
	if ticket != nil {
		until := ticket.NotAfter.UTC().Format(time.RFC3339)
		if facts.Now.Before(ticket.NotAfter) {
			j.approved = ticket
			j.events.add("membership", "op", fmt.Sprintf("an operator lets this machine in, until %s", until))
			return 0
		}
		err = fmt.Errorf("an operator lets this machine in until %s, and by its own clock it is %s: one of the clocks is wrong", until, facts.Now.UTC().Format(time.RFC3339))
	}
	j.tellMembership(facts, step, j.held, controlPlanes(c), err)
	if waits {
		return joinrequest.Interval
	}
	return max(joinrequest.Interval, j.longer())
}

// wantCertificates asks for what one of the cluster has, or for newer ones.
func (j *joiner) wantCertificates(ctx context.Context, c *config.Config, facts workerjoin.Facts, step workerjoin.Decision) time.Duration {
	got, err := j.ask(ctx, step.Action, c, facts.Ticket, j.held, facts.Addresses)
	if err == nil {
		err = got.store(paths.Membership)
	}
	wait := lookAgain
	if err != nil {
		wait = j.longer()
		if facts.Ticket == j.approved && facts.Ticket != nil && !step.Usable && j.pause > joinrequest.Interval {
			j.approved = nil // it may have been taken back: ask anew
		}
		if step.Usable && step.Action == workerjoin.Join && definite(err) {
			j.refused = setAside{pki.Serial(facts.Ticket), facts.Now.Add(asideFor)}
		}
	} else {
		j.held, j.pause = got, askAgain
		j.events.add("membership", "op", fmt.Sprintf("this machine has its certificates of cluster %s, until %s", c.Cluster.Metadata.Name, got.machine.Cert.NotAfter.UTC().Format(time.RFC3339)))
		facts.Certificates = got.certificates()
		if step = workerjoin.Next(facts); step.Action != workerjoin.Idle {
			wait = calm
		}
	}
	j.tellMembership(facts, step, j.held, controlPlanes(c), err)
	return wait
}

// longer is how long to rest now; the next time it is twice as long.
func (j *joiner) longer() time.Duration {
	now := j.pause
	j.pause = min(2*now, askSeldom)
	return now
}

// tellMembership lets others see where it stands, if that is new.
func (m *machine) tellMembership(f workerjoin.Facts, s workerjoin.Decision, held heldLeaves, from []string, failed error) {
	next := membershipState{Joined: s.Usable, Renews: s.Until, held: held, From: from}
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
	if next.Removed = have.Removed && next.held.machine == have.held.machine; next.Removed && next.Problem == "" {
		next.Problem = have.Problem
	}
	next.Ended = have.Ended && next.Removed
	if failed == nil && s.Action != workerjoin.Idle && have.Problem != "" && next.held.machine == have.held.machine {
		return // it is about to try again, and the last failure says more
	}
	same := have.Joined == next.Joined && have.Problem == next.Problem && have.held.machine == next.held.machine && have.Renews.Equal(next.Renews)
	if same {
		return
	}
	if next.Problem != "" && next.Problem != have.Problem {
		m.events.add("membership", "failure", next.Problem)
	}
	m.membership.Set(next)
}

// setAside is a ticket that was refused while what the machine has is good: it goes on with that,
// and tries the ticket again later.
type setAside struct {
	serial string
	until  time.Time
}

// asideFor is how long: those who refuse a ticket because they have just started know better by
// then.
const asideFor = 10 * time.Minute

func (a setAside) has(ticket *x509.Certificate, now time.Time) bool {
	return ticket != nil && pki.Serial(ticket) == a.serial && now.Before(a.until)
}

// definite tells whether all who were asked have answered, and refused: at the door, or in words.
func definite(err error) bool {
	var all client.Failures
	if !errors.As(err, &all) {
		return false
	}
	return !slices.ContainsFunc(all, func(err error) bool {
		return !errors.Is(err, client.ErrRefused) && status.Code(err) != codes.FailedPrecondition
	})
}

// noteCounts notes that all control-plane machines have taken what this worker holds: if it was
// thought to be removed, it is not.
func (m *machine) noteCounts() {
	m.membership.Update(func(s membershipState) membershipState {
		if s.Removed {
			s.Removed, s.Ended, s.Problem = false, false, ""
		}
		return s
	})
}

// noteRemoved notes that a control-plane machine has refused what this worker holds, because it was
// revoked: a call over a connection that was made before, or the next connection. That what it held
// before is refused says nothing: it may have been invited anew meanwhile.
func (m *machine) noteRemoved(refused error) {
	// Who has not shown that he is of the cluster can have anything in his certificates, and so in
	// the error about them.
	if refused == nil || errors.Is(refused, client.ErrUntrusted) || errors.Is(refused, client.ErrUnreachable) ||
		!errors.Is(refused, client.ErrRevoked) && !strings.Contains(refused.Error(), trust.RevokedPrefix) {
		return
	}
	var call failedCall
	_ = errors.As(refused, &call) // of what is not one, it is not known what was shown
	m.membership.Update(func(s membershipState) membershipState {
		if held := s.held.machine; held != nil && len(call.shown) > 0 && !bytes.Equal(call.shown, held.Cert.Raw) {
			return s
		}
		if !s.Removed {
			s.Removed, s.Problem = true, "this machine was removed from the cluster: "+refused.Error()
		}
		return s
	})
}

// ask has a control-plane machine sign new certificates: the first of them that does.
func (m *machine) ask(ctx context.Context, how workerjoin.Action, c *config.Config, ticket *x509.Certificate, held heldLeaves, addresses []netip.Addr) (heldLeaves, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	identity := m.identity.Load().Key
	endpoint := client.Endpoint{CA: machinePool(c), Accepts: m.controlsStill}
	if how == workerjoin.Join {
		key := crypto.Signer(identity)
		if own := configuredTicket(c); !own.IsZero() {
			key = own.Key.Signer()
		}
		endpoint.Cert = tls.Certificate{Certificate: [][]byte{ticket.Raw}, PrivateKey: key}
	} else {
		endpoint.Cert = tls.Certificate{Certificate: [][]byte{held.machine.Cert.Raw}, PrivateKey: identity}
	}
	request := &api.JoinRequest{Leaves: map[string][]byte{}}
	var err error
	if request.Machine, err = pki.NewRequest(identity); err != nil {
		return heldLeaves{}, err
	}
	got := heldLeaves{machine: &pki.Leaf{Key: identity}, node: credentials.IssuedLeaves{}, addresses: addresses}
	for _, l := range credentials.NodeLeaves(c.Machine.Metadata.Name, nil) {
		key, err := pki.NewKey()
		if err != nil {
			return heldLeaves{}, err
		}
		got.node[l.Cert] = &pki.Leaf{Key: key}
		if request.Leaves[l.Cert], err = pki.NewRequest(key); err != nil {
			return heldLeaves{}, err
		}
	}
	answer, err := firstOf(ctx, controlPlanes(c), func(ctx context.Context, from string) (*api.JoinResponse, error) {
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
		return heldLeaves{}, err
	}
	return got, got.take(answer, c)
}

// askOne bounds asking one of them while there are others.
const askOne = 15 * time.Second

// part is the time for one of so many that are left to be asked.
func part(ctx context.Context, left int) time.Duration {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		return min(askOne, time.Until(end)/time.Duration(left))
	}
	return askOne
}

// firstOf asks one after the other until one gives what is asked for, and leaves those after it
// their part of the time.
func firstOf(ctx context.Context, all []string, ask func(ctx context.Context, from string) (*api.JoinResponse, error)) (*api.JoinResponse, error) {
	var problems client.Failures
	for i, from := range all {
		asking, cancel := context.WithTimeout(ctx, part(ctx, len(all)-i))
		answer, err := ask(asking, from)
		cancel()
		if err == nil {
			return answer, nil
		}
		problems = append(problems, err)
	}
	return nil, problems
}

// answerError is what a machine has answered to a call, in its words.
type answerError struct {
	from string
	err  error // with a status
}

func (e answerError) Error() string { return e.from + ": " + status.Convert(e.err).Message() }

func (e answerError) Unwrap() error { return e.err }

// controlPlanes are the machines that can be asked, in that order: those that knew the ticket when
// it was issued, and all others of the control plane; where the configuration names nobody, the one
// at the cluster's endpoint.
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

// take puts what was signed beside the keys, and believes none of it.
func (h heldLeaves) take(answer *api.JoinResponse, c *config.Config) error {
	read := func(l *pki.Leaf, der []byte, cas []*x509.Certificate) (err error) {
		if l.Cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
		if !pki.Matches(l.Cert, l.Key) {
			return errors.New("it is for another key")
		}
		if !pki.SignedBy(l.Cert, cas...) {
			return errors.New("it is of another cluster")
		}
		return nil
	}
	if err := read(h.machine, answer.Machine, machineCAs(c)); err != nil {
		return fmt.Errorf("membership: the machine's certificate cannot be used: %w", err)
	}
	for name, l := range h.node {
		if err := read(l, answer.Leaves[name], nodeCAs(c)); err != nil {
			return fmt.Errorf("membership: %s cannot be used: %w", name, err)
		}
	}
	return nil
}
