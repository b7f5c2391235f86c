package workerjoin

import (
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// The simulation has one, three or five control-plane machines with their ledgers, and machines
// that join. Random faults occur: messages are lost or overtake each other, the network splits,
// machines restart, control-plane machines lose their ledgers or get older copies of them, clocks
// jump, and a thief copies tickets. The operator creates tickets and removes machines at random
// times.

const (
	certificateTTL = 90 * 24 * time.Hour
	ticketTTL      = time.Hour
)

var (
	address = netip.MustParseAddr("10.0.0.21")
	begin   = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	// Keys and CAs are the same in all runs, because their generation takes longer than a run.
	authorities = made(func() [3]*pki.CA {
		var out [3]*pki.CA
		for i, name := range []string{"clients", "machines", "kubernetes"} {
			ca, err := pki.NewCAAt(name, 50*365*24*time.Hour, begin)
			if err != nil {
				panic(err)
			}
			out[i] = ca
		}
		return out
	})
	keys = made(func() [3]*ecdsa.PrivateKey {
		var out [3]*ecdsa.PrivateKey
		for i := range out {
			key, err := pki.NewKey()
			if err != nil {
				panic(err)
			}
			out[i] = key
		}
		return out
	})
)

func made[T any](f func() T) T { return f() }

// world is the state of a run of the simulation.
type world struct {
	t        *testing.T
	seed     uint64
	random   *rand.Rand
	log      []string
	now      time.Time
	planes   []*plane
	nodes    []*node
	requests []*request
	ledgers  int  // number of ledgers created so far
	quick    bool // the clock advances by seconds and minutes only
	// no ledger is lost or replaced by an older copy, and the control plane's clocks are right
	faultless bool
	// certified maps each ticket to the machines that got certificates with it.
	certified map[string]*certified
	// tickets of removed machines; at least one control-plane machine has recorded the removal
	removed map[string]bool
}

// certified describes the machines that got certificates with a ticket.
type certified struct {
	keys          map[string]bool
	name, address string // name and address of the machine that got the last certificates
	// moved is true if a machine has called with the ticket from another address after that.
	moved bool
}

// plane is a control-plane machine. Its disk holds the ledger; the simulation records separately
// which facts the machine can know.
type plane struct {
	name    string
	ledger  trust.Ledger
	session *trust.Session
	ahead   time.Duration // the time by which its clock is ahead
	off     bool
	side    int // part of the split network
	run     int // number of starts

	synced        map[string]bool // IDs of the ledgers that it has merged since its last start
	knownRemovals map[string]bool // tickets of removed machines whose removal it knows
	// older is true if the ledger was replaced by an older copy, and the machine has not synced
	// with all others after that.
	older bool
	saved []saved // copies of the ledger
}

// saved is a copy of a ledger that can replace the ledger of its machine later.
type saved struct {
	ledger        trust.Ledger
	knownRemovals map[string]bool
}

// node is a worker: the worker w, a machine with a stolen copy of the configuration of w, or the
// worker v.
type node struct {
	name         string
	key          *ecdsa.PrivateKey
	at           netip.Addr
	ticket       *x509.Certificate
	certificates Certificates
	ahead        time.Duration // the time by which its clock is ahead
}

// request is a request for certificates: a machine calls a control-plane machine, which calls the
// others.
type request struct {
	n      *node
	called *plane // the control-plane machine that n calls
	run    int    // the value of called.run when the request began
	begun  time.Time
	m      trust.Member // the member that n wants to be
	known  bool         // n presents certificates instead of a ticket
	// knows is the part of the called machine's membership that concerns the ticket. The called
	// machine sends this part to the others.
	knows    trust.Membership
	to       []*plane              // the machines that the called machine still has to call
	votes    map[string]bool       // ledgers of the machines that have voted for m
	bindings []trust.TicketBinding // bindings in the answers of the other machines
	stored   map[string]bool       // ledgers that contain the member; nil before the decision
}

// say logs an event, unless one of the last five events has the same text.
func (w *world) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !slices.Contains(w.log[max(0, len(w.log)-5):], line) {
		w.log = append(w.log, line)
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-60):] {
		w.t.Log(line)
	}
	w.t.Fatalf("seed %d: "+format, append([]any{w.seed}, args...)...)
}

func (w *world) lost() bool { return w.random.IntN(4) == 0 }

// hears returns true if a message from p reaches q.
func (w *world) hears(p, q *plane) bool { return !p.off && !q.off && p.side == q.side && !w.lost() }

func (w *world) clock(p *plane) time.Time { return w.now.Add(p.ahead) }

// empty gives a machine a new ledger.
func (w *world) empty(p *plane) {
	w.ledgers++
	p.ledger, p.knownRemovals, p.older, p.saved = trust.Ledger{}.WithID(fmt.Sprintf("%032x", w.ledgers)), map[string]bool{}, false, nil
	w.start(p)
}

func (w *world) start(p *plane) {
	p.session, p.synced = &trust.Session{}, map[string]bool{}
	p.run++
}

// sync makes p sync with q, and returns false if a message is lost.
func (w *world) sync(p, q *plane) bool {
	if p == q || !w.hears(p, q) || !w.hears(q, p) {
		return false
	}
	next, _, err := p.ledger.MergeRevocations(q.ledger.Revoked, w.clock(p))
	if err == nil {
		next, _, err = next.MergeMembership(q.ledger.Public(), p.session, w.clock(p))
	}
	if err != nil {
		w.fail("%s cannot merge the ledger of %s: %v", p.name, q.name, err)
	}
	p.ledger, _ = next.Prune(p.session, w.clock(p))
	p.session.MarkSynced(q.ledger.ID)
	p.synced[q.ledger.ID] = true
	for ticket := range q.knownRemovals {
		p.knownRemovals[ticket] = true
	}
	p.older = p.older && slices.ContainsFunc(w.planes, func(o *plane) bool { return o != p && !p.synced[o.ledger.ID] })
	return true
}

// syncAll makes each control-plane machine sync with each other one.
func (w *world) syncAll() {
	for _, p := range w.planes {
		for _, q := range w.planes {
			w.sync(p, q)
		}
	}
}

// agree syncs all running control-plane machines until they have the same state, and fails the test
// after more than 20 rounds.
func (w *world) agree() {
	var there []*plane
	for _, p := range w.planes {
		if !p.off {
			there = append(there, p)
		}
	}
	for try := 0; ; try++ {
		if !slices.ContainsFunc(there, func(p *plane) bool {
			return !slices.Equal(p.ledger.Public().Digest(), there[0].ledger.Public().Digest()) || !slices.Equal(p.ledger.Revoked.Digest(), there[0].ledger.Revoked.Digest()) ||
				slices.ContainsFunc(there, func(o *plane) bool { return o != p && !p.synced[o.ledger.ID] })
		}) {
			return
		}
		if try > 20 {
			w.fail("the running control-plane machines do not get the same state")
		}
		w.syncAll()
	}
}

func (w *world) any() *plane { return w.planes[w.random.IntN(len(w.planes))] }

// createTicket simulates `orlopctl nodes add`: a quorum of machines must store the ticket before
// the operator gets it.
func (w *world) createTicket(p *plane, name string) *x509.Certificate {
	if p.off {
		return nil
	}
	ids, voters := []string{p.ledger.ID}, []*plane{}
	for _, q := range w.planes {
		if p != q && w.hears(p, q) && w.hears(q, p) {
			next, _, err := p.ledger.MergeMembership(q.ledger.Public(), p.session, w.clock(p))
			if err != nil {
				w.fail("%v", err)
			}
			p.ledger, ids, voters = next, append(ids, q.ledger.ID), append(voters, q)
		}
	}
	needs := trust.Majority(len(w.planes))
	if len(ids) < needs {
		return nil
	}
	// The certificate has no signature: a signature would take a third of the simulation's time,
	// and it is not verified here.
	cert := &x509.Certificate{SerialNumber: new(big.Int).SetUint64(w.random.Uint64()), NotAfter: w.clock(p).Add(ticketTTL).Truncate(time.Second)}
	ticket := trust.Ticket{Serial: pki.Serial(cert), Name: name, At: w.clock(p), Expires: cert.NotAfter, Voters: ids, Quorum: needs}
	stored := 1
	for _, q := range voters {
		if w.hears(p, q) {
			next, _, err := q.ledger.MergeMembership(trust.Membership{Tickets: []trust.Ticket{ticket}}, q.session, w.clock(q))
			if err != nil {
				w.fail("%v", err)
			}
			q.ledger = next
			if w.hears(q, p) {
				stored++
			}
		}
	}
	next, err := p.ledger.AddTicket(ticket)
	if err != nil || stored < needs {
		return nil
	}
	p.ledger = next
	w.say("%s: %s creates a ticket for %s: %.6s", w.now, p.name, name, ticket.Serial)
	return cert
}

// remove simulates `orlopctl nodes remove`: the called machine p and the machines that it reaches
// record the removal.
func (w *world) remove(p *plane, name string) {
	if p.off {
		return
	}
	for _, q := range w.planes {
		w.sync(p, q)
	}
	next, tickets, err := p.ledger.Remove(name, w.now, "operator")
	if err != nil {
		return
	}
	p.ledger = next
	reached := []*plane{p}
	for _, q := range w.planes {
		if q != p && w.hears(p, q) {
			if q.ledger, _, err = q.ledger.MergeRevocations(p.ledger.Revoked, w.clock(q)); err != nil {
				w.fail("%v", err)
			}
			reached = append(reached, q)
		}
	}
	for _, ticket := range tickets {
		w.removed[ticket] = true
		w.say("%s: %s removes %s, ticket %.6s", w.now, p.name, name, ticket)
		for _, q := range reached {
			q.knownRemovals[ticket] = true
		}
	}
}

// nextStep makes a worker perform its next step with a control-plane machine.
func (w *world) nextStep(n *node, p *plane) {
	f := Facts{Now: w.now.Add(n.ahead), Name: n.name, Addresses: []netip.Addr{n.at}, MachineCAs: []*x509.Certificate{authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}, Certificates: n.certificates}
	if n.ticket != nil {
		f.Ticket = n.ticket
	}
	step := Next(f)
	if step.Action == Idle || w.lost() || p.off {
		return
	}
	now := w.clock(p)
	m := trust.Member{Name: n.name, Address: fmt.Sprint(n.at), Key: pki.KeyFingerprint(&n.key.PublicKey), Renewed: now}
	shown := f.Ticket
	if step.Action == Join {
		m.Ticket = pki.Serial(f.Ticket)
	} else {
		shown, m.Ticket = f.Certificates.Machine, pki.TicketOf(f.Certificates.Machine)
	}
	// apid accepts only a certificate that is valid and not revoked.
	if !now.Before(shown.NotAfter) || trust.CheckRevoked(p.ledger.Revoked, shown) != nil {
		w.say("%s refuses the certificate of %s", p.name, n.name)
		return
	}
	q := &request{n: n, called: p, run: p.run, begun: w.now, m: m, known: step.Action == Renew, votes: map[string]bool{}}
	if q.known && !p.ledger.TicketUsed(m.Ticket) { // the ledgers of others may have the ticket
		synced := 1
		for _, o := range w.planes {
			if w.sync(p, o) {
				synced++
			}
		}
		if synced < trust.Majority(len(w.planes)) {
			return
		}
	}
	next, err := p.ledger.Vote(m, q.known, p.session, now)
	if err != nil {
		w.say("%s: %s at %s: %v", p.name, n.name, n.at, err)
		return
	}
	p.ledger, q.votes[p.ledger.ID], q.knows = next, true, next.PublicForTicket(m.Ticket)
	if c := w.certified[m.Ticket]; c != nil && c.address != m.Address {
		c.moved = true
	}
	q.to = w.others(p)
	w.requests = append(w.requests, q)
}

// others returns the other control-plane machines in random order.
func (w *world) others(p *plane) []*plane {
	var out []*plane
	for _, i := range w.random.Perm(len(w.planes)) {
		if w.planes[i] != p {
			out = append(out, w.planes[i])
		}
	}
	return out
}

// step delivers a message of a random request, or ends the request.
func (w *world) step() {
	if len(w.requests) == 0 {
		return
	}
	i := w.random.IntN(len(w.requests))
	q := w.requests[i]
	if q.called.off || q.called.run != q.run || w.now.Sub(q.begun) > 10*time.Second || w.decide(q) || len(q.to) == 0 {
		w.requests = slices.Delete(w.requests, i, i+1)
		return
	}
	p := q.to[0]
	q.to = q.to[1:]
	if !w.hears(q.called, p) {
		return
	}
	merged, _, err := p.ledger.MergeMembership(q.knows, p.session, w.clock(p))
	if err != nil {
		w.fail("%v", err)
	}
	p.ledger = merged
	if q.stored != nil {
		if w.hears(p, q.called) && p.ledger.TicketUsed(q.m.Ticket) {
			q.stored[p.ledger.ID] = true
		}
		return
	}
	next, err := p.ledger.Vote(q.m, q.known, p.session, w.clock(p))
	p.ledger = next
	if !w.hears(p, q.called) {
		return // the vote is recorded, but its answer is lost
	}
	if err == nil {
		q.votes[p.ledger.ID] = true
	}
	q.bindings = append(q.bindings, p.ledger.PublicForTicket(q.m.Ticket).Bindings...)
}

// decide admits the machine if its votes are a quorum. It issues certificates when a majority of
// the ledgers contains the member. It returns true if the request has ended.
func (w *world) decide(q *request) bool {
	p, needs := q.called, trust.Majority(len(w.planes))
	if q.stored == nil {
		next, _, err := p.ledger.MergeMembership(trust.Membership{Bindings: q.bindings}, p.session, w.clock(p))
		if err != nil {
			w.fail("%v", err)
		}
		if next, err = next.Admit(q.m, q.known, len(q.votes), needs); err != nil {
			return false
		}
		p.ledger, q.stored, q.to = next, map[string]bool{p.ledger.ID: true}, w.others(p)
		q.knows = next.PublicForTicket(q.m.Ticket)
	}
	if len(q.stored) < needs {
		return false
	}
	m, n := q.m, q.n
	if p.knownRemovals[m.Ticket] {
		if p.ledger.TicketUsed(m.Ticket) {
			w.fail("%s issues certificates to %s, although it knows that the machine was removed", p.name, n.name)
		}
		return true
	}
	c := w.certified[m.Ticket]
	if c == nil {
		c = &certified{keys: map[string]bool{}}
		w.certified[m.Ticket] = c
	}
	if c.keys[m.Key] = true; len(c.keys) > 1 {
		w.fail("two keys got certificates by one ticket")
	}
	c.name, c.address, c.moved = m.Name, m.Address, false
	for ticket, o := range w.certified {
		if w.faultless && ticket != m.Ticket && !w.removed[ticket] && !o.keys[m.Key] && (o.name == m.Name || o.address == m.Address && !o.moved) {
			w.fail("%s at %s has got certificates by %.6s, and %s at %s has some by %.6s", m.Name, m.Address, m.Ticket, o.name, o.address, ticket)
		}
	}
	if w.lost() {
		w.say("%s: %s: %s: the answer is lost", w.now, p.name, n.name)
		return true
	}
	issue := func(ca *pki.CA) *x509.Certificate {
		leaf, err := ca.Issue(pki.Spec{CN: m.Name, Usage: pki.Both, IPs: []netip.Addr{n.at}, TTL: certificateTTL, Now: w.clock(p), Key: n.key, Ticket: m.Ticket})
		if err != nil {
			w.t.Fatal(err)
		}
		return leaf.Cert
	}
	n.certificates = Certificates{issue(authorities[1]), []*x509.Certificate{issue(authorities[2])}, []netip.Addr{n.at}}
	w.say("%s: %s: %s at %s has certificates by ticket %.6s", w.now, p.name, n.name, n.at, m.Ticket)
	return true
}

// event performs a random event.
func (w *world) event() {
	n, p := w.nodes[w.random.IntN(len(w.nodes))], w.any()
	what := w.random.IntN(17)
	if w.quick && (what == 3 || what == 4 || what == 6 || what > 14) {
		w.now = w.now.Add(time.Duration(w.random.IntN(5)) * time.Second)
		return
	}
	switch what {
	case 0, 1: // the operator creates a ticket; a thief may copy the configuration
		if ticket := w.createTicket(p, n.name); ticket != nil {
			for _, o := range w.nodes {
				if o.name == n.name && w.random.IntN(4) > 0 {
					o.ticket = ticket
				}
			}
		}
	case 2: // the operator removes the machine
		w.remove(p, n.name)
	case 3: // a machine loses its disk
		n.certificates = Certificates{}
	case 4: // the clock of a machine changes
		n.ahead = time.Duration(w.random.IntN(2000)-1000) * time.Hour
	case 5: // the address of a machine changes
		n.at = address.Next()
		if w.random.IntN(2) == 0 {
			n.at = address
		}
	case 6: // up to 60 days pass
		w.now = w.now.Add(time.Duration(w.random.IntN(60*24)) * time.Hour)
	case 7: // a control-plane machine stops or starts
		if p.off = !p.off; !p.off {
			w.start(p)
		}
	case 8: // a machine gets an older copy of its ledger, unless another machine has an older copy
		if !w.faultless && len(p.saved) > 0 && !slices.ContainsFunc(w.planes, func(o *plane) bool { return o != p && o.older }) && len(w.planes) > 1 {
			was := p.saved[w.random.IntN(len(p.saved))]
			p.ledger, p.knownRemovals, p.older, p.off = was.ledger, maps.Clone(was.knownRemovals), true, false
			w.start(p)
			w.say("%s: %s has an older ledger", w.now, p.name)
		}
	case 9: // a machine loses its ledger
		if !w.faultless && w.random.IntN(2) == 0 {
			p.off = false
			w.empty(p)
			w.say("%s: %s has no ledger", w.now, p.name)
		}
	case 10: // the clock of a control-plane machine changes
		if !w.faultless {
			p.ahead = time.Duration(w.random.IntN(800)-400) * time.Hour
		}
	case 11: // the network splits
		for _, p := range w.planes {
			p.side = w.random.IntN(2)
		}
	case 12: // all control-plane machines run with correct clocks, and the network is not split
		for _, p := range w.planes {
			p.side, p.off, p.ahead = 0, false, 0
		}
	case 13, 14: // the ledger of a machine is copied
		p.saved = append(p.saved, saved{p.ledger, maps.Clone(p.knownRemovals)})
	default:
		w.now = w.now.Add(time.Duration(w.random.IntN(30)) * time.Minute)
	}
}

// await makes a machine call the given control-plane machines until holds() is true. After 200
// attempts, it fails the test with the text what.
func (w *world) await(n *node, by []*plane, what string, holds func() bool) {
	w.requests = nil
	for try := 0; !holds(); try++ {
		if try > 200 {
			w.fail("%s", what)
		}
		w.now = w.now.Add(time.Second)
		w.nextStep(n, by[w.random.IntN(len(by))])
		for len(w.requests) > 0 {
			w.step()
		}
		if try%4 == 0 {
			w.syncAll()
		}
	}
}

// signedByOnce returns a function with the same results as pki.SignedBy. The function verifies each
// signature only once.
func signedByOnce() func(c *x509.Certificate, cas ...*x509.Certificate) bool {
	type pair struct{ cert, ca *x509.Certificate }
	known := map[pair]bool{}
	return func(c *x509.Certificate, cas ...*x509.Certificate) bool {
		return slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
			p := pair{c, ca}
			signed, found := known[p]
			if !found {
				signed = pki.SignedBy(c, ca)
				known[p] = signed
			}
			return signed
		})
	}
}

// TestFaults checks the invariants of joining in many runs of the simulation. No ticket admits two
// machines. A control-plane machine that knows a removal issues no more certificates to the removed
// machine, and all running control-plane machines get the removal by sync. Without lost ledgers, no
// two machines have the same name or address. A machine with a new ticket can join, and later renew
// its certificates, as long as a majority of the control-plane machines runs.
func TestFaults(t *testing.T) {
	const seeds = 2000
	joined := 0
	t.Cleanup(func() { signedBy = pki.SignedBy })
	for seed := range uint64(seeds) {
		signedBy = signedByOnce()
		w := &world{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)), now: begin, certified: map[string]*certified{}, removed: map[string]bool{}, faultless: seed%3 == 0, quick: seed%5 > 1}
		for i := range []int{1, 3, 3, 5}[seed%4] {
			p := &plane{name: string(rune('a' + i))}
			w.empty(p)
			w.planes = append(w.planes, p)
		}
		w.syncAll()
		w.nodes = []*node{{name: "w", key: keys[0], at: address}, {name: "w", key: keys[1], at: address.Next()}, {name: "v", key: keys[2], at: address}}
		for range 40 {
			w.event()
			for _, i := range w.random.Perm(len(w.nodes)) {
				w.nextStep(w.nodes[i], w.any())
				if w.random.IntN(3) == 0 {
					// The first call has timed out, so the worker calls again.
					w.nextStep(w.nodes[i], w.any())
				}
			}
			for range w.random.IntN(12) {
				w.step()
			}
			for range w.random.IntN(3) {
				w.sync(w.any(), w.any())
			}
		}
		// From here on, lost messages are the only faults. After the sync, all control-plane
		// machines know each removal that one of them knew.
		known := map[string]bool{}
		for _, p := range w.planes {
			p.side, p.off, p.ahead = 0, false, 0
			maps.Copy(known, p.knownRemovals)
		}
		w.agree()
		for _, p := range w.planes {
			for ticket := range known {
				if _, err := p.ledger.Vote(trust.Member{Name: "w", Ticket: ticket, Address: "10.0.0.99"}, true, p.session, w.now); err == nil {
					w.fail("%s does not know the removal of ticket %.6s", p.name, ticket)
				}
			}
		}
		// Worker 0 gets a new ticket. Then control-plane machines stop, first the machine that
		// created the ticket, until only a majority runs.
		for _, name := range []string{"w", "v"} {
			w.remove(w.planes[0], name)
		}
		w.agree()
		n := w.nodes[0]
		n.ahead, n.ticket, n.at = 0, nil, address
		for try := 0; n.ticket == nil; try++ {
			if try > 200 {
				w.fail("no ticket can be created for a removed machine")
			}
			ticket := w.createTicket(w.planes[0], "w")
			for _, t := range w.planes[0].ledger.Tickets {
				// Worker 0 gets only a ticket of which all control-plane machines are voters.
				if ticket != nil && t.Serial == pki.Serial(ticket) && len(t.Voters) == len(w.planes) {
					n.ticket = ticket
				}
			}
		}
		by := slices.Clone(w.planes)
		for len(by) > trust.Majority(len(w.planes)) {
			by[0].off = true
			by = by[1:]
		}
		w.await(n, by, "a machine with a ticket has not joined", func() bool {
			return n.certificates.Machine != nil && pki.TicketOf(n.certificates.Machine) == pki.Serial(n.ticket)
		})
		// Worker 0 renews from another address while other control-plane machines are off.
		for _, p := range w.planes {
			p.off = false
		}
		w.agree()
		by = slices.Clone(w.planes)
		for len(by) > trust.Majority(len(w.planes)) {
			i := w.random.IntN(len(by))
			by[i].off = true
			by = slices.Delete(by, i, i+1)
		}
		w.now, n.at, n.ticket = w.now.Add(70*24*time.Hour), address.Next(), nil
		old := n.certificates.Machine
		w.await(n, by, "a member has not renewed", func() bool { return n.certificates.Machine != old })
		w.agree()
		for _, p := range by {
			if members := p.ledger.Members; len(members) != 1 || members[0].Key != pki.KeyFingerprint(&keys[0].PublicKey) || members[0].Address != fmt.Sprint(address.Next()) {
				w.fail("the members are %v", members)
			}
		}
		joined += len(w.certified)
	}
	if joined < seeds*3/2 {
		t.Errorf("only %d tickets were used in %d runs", joined, seeds)
	}
	t.Logf("%d tickets were used in %d runs", joined, seeds)
}

// TestNext checks three results of Next for each row of the table in the comment of Next: the
// action, whether the certificates are usable, and the reason.
func TestNext(t *testing.T) {
	issue := func(ca *pki.CA, cn, ticket string, at time.Time, ttl time.Duration) *x509.Certificate {
		leaf, err := ca.Issue(pki.Spec{CN: cn, Usage: pki.Both, IPs: []netip.Addr{address}, TTL: ttl, Now: at, Key: keys[0], Ticket: ticket})
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Cert
	}
	ticket := issue(authorities[0], "w", "", begin, time.Hour)
	own := func(at time.Time) Certificates {
		return Certificates{issue(authorities[1], "w", pki.Serial(ticket), at, certificateTTL), []*x509.Certificate{issue(authorities[2], "system:node:w", pki.Serial(ticket), at, certificateTTL)}, []netip.Addr{address}}
	}
	older := Certificates{Machine: issue(authorities[1], "w", "1234", begin, certificateTTL)}
	stranger := Certificates{Machine: issue(authorities[2], "w", "1234", begin, certificateTTL)}
	other := Certificates{Machine: issue(authorities[1], "v", "1234", begin, certificateTTL)}
	if s := Next(Facts{Now: begin, Name: "w", Addresses: []netip.Addr{address}, Certificates: own(begin),
		MachineCAs: []*x509.Certificate{authorities[0].Cert, authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}}); s.Action != Renew || !s.Usable {
		t.Errorf("with certificates of a CA that is not the first one any more: %+v", s)
	}
	for _, c := range []struct {
		name   string
		held   Certificates
		ticket *x509.Certificate
		after  time.Duration
		at     []netip.Addr
		want   Action
		usable bool
		why    string
	}{
		{"no certificates, no ticket", Certificates{}, nil, 0, []netip.Addr{address}, Idle, false, "this machine has not joined the cluster yet, and there is no ticket (Machine.spec.join); `orlopctl nodes add` creates one"},
		{"a ticket", Certificates{}, ticket, 0, []netip.Addr{address}, Join, false, "this machine has not joined the cluster yet"},
		{"an expired ticket", Certificates{}, ticket, 2 * time.Hour, []netip.Addr{address}, Idle, false, "this machine has not joined the cluster yet, and its ticket expired at 2026-05-01T13:00:00Z; `orlopctl nodes add` creates another one"},
		{"no address", Certificates{}, ticket, 0, nil, Idle, false, "it has no address yet"},
		{"new certificates", own(begin), ticket, time.Minute, []netip.Addr{address}, Idle, true, ""},
		{"new certificates, expired ticket", own(begin), ticket, 48 * time.Hour, []netip.Addr{address}, Idle, true, ""},
		{"certificates that are due for renewal", own(begin), nil, 61 * 24 * time.Hour, []netip.Addr{address}, Renew, true, ""},
		{"expired certificates", own(begin), nil, 91 * 24 * time.Hour, []netip.Addr{address}, Renew, true, "the certificates of this machine expired at 2026-07-30T12:00:00Z, or its clock is wrong"},
		{"expired certificates and a ticket", own(begin.Add(-91 * 24 * time.Hour)), ticket, 0, []netip.Addr{address}, Join, true, "the certificates of this machine expired at 2026-04-30T12:00:00Z, or its clock is wrong"},
		{"certificates that begin later", own(begin.Add(48 * time.Hour)), nil, 0, []netip.Addr{address}, Renew, true, "the certificates of this machine begin at 2026-05-03T11:55:00Z, or its clock is wrong"},
		{"another address", own(begin), nil, time.Minute, []netip.Addr{netip.MustParseAddr("10.0.0.22")}, Renew, true, ""},
		{"certificates and a new ticket", older, ticket, time.Minute, []netip.Addr{address}, Join, true, ""},
		{"certificates of another cluster", stranger, ticket, time.Minute, []netip.Addr{address}, Join, false, "the certificates of this machine are of another cluster"},
		{"certificates with another name", other, ticket, time.Minute, []netip.Addr{address}, Join, false, "the certificates of this machine are of a machine called v"},
	} {
		s := Next(Facts{Now: begin.Add(c.after), Name: "w", Addresses: c.at, MachineCAs: []*x509.Certificate{authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}, Certificates: c.held, Ticket: c.ticket})
		why := ""
		if s.Reason != nil {
			why = s.Reason.Error()
		}
		if s.Action != c.want || s.Usable != c.usable || why != c.why {
			t.Errorf("%s: %+v", c.name, s)
		}
		if rests := s.Action == Idle && s.Usable; rests == s.Until.IsZero() {
			t.Errorf("%s: Until is %s; only the action Idle with usable certificates has a time", c.name, s.Until)
		}
	}
}
