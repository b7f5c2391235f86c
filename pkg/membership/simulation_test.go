package membership

import (
	"crypto/ecdsa"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// A control plane with its book, and machines that join it, in a world in which questions and answers get lost, machines and the control
// plane start again, clocks jump, tickets are copied, and the operator changes his mind.

const (
	life       = 90 * 24 * time.Hour
	ticketLife = time.Hour
)

var (
	address = netip.MustParseAddr("10.0.0.21")
	begin   = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	// Keys and authorities are the same in all worlds: making them takes longer than all the rest.
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

// world is one run.
type world struct {
	t      *testing.T
	random *rand.Rand
	log    []string
	now    time.Time
	book   trust.Book
	nodes  []*node
	// certified are the keys that have ever got certificates by each ticket.
	certified map[string]map[string]bool
	removed   map[string]bool // tickets
}

// node is a machine called w, of which there are several: the real one, its replacement, and one with a stolen configuration.
type node struct {
	key    *ecdsa.PrivateKey
	at     netip.Addr
	ticket *pki.Leaf
	held   Held
	ahead  time.Duration // of its clock
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-30):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// invite is `orlopctl nodes add w`.
func (w *world) invite() *pki.Leaf {
	leaf, err := authorities[0].Issue(pki.Spec{CN: "w", O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: ticketLife, Now: w.now, Key: keys[0]})
	if err != nil {
		w.t.Fatal(err)
	}
	serial := pki.Serial(leaf.Cert)
	next, err := w.book.Invite(trust.Issued{Serial: serial, Origin: serial, Name: "w", Role: trust.RoleJoin, At: w.now, Expires: leaf.Cert.NotAfter})
	if err != nil {
		return nil
	}
	w.book = next
	return leaf
}

func (w *world) lost() bool { return w.random.IntN(4) == 0 }

// turn has a machine do what it decides.
func (w *world) turn(name string, n *node) {
	f := Facts{Now: w.now.Add(n.ahead), Name: "w", Addresses: []netip.Addr{address}, MachineCAs: []*x509.Certificate{authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}, Held: n.held}
	if n.ticket != nil {
		f.Ticket = n.ticket.Cert
	}
	step := Next(f)
	if step.Act == Rest || w.lost() {
		return
	}
	m := trust.Member{Name: "w", Address: fmt.Sprint(n.at), Key: pki.KeyFingerprint(&n.key.PublicKey), Renewed: w.now}
	shown := f.Ticket
	if step.Act == Join {
		m.Ticket = pki.Serial(f.Ticket)
	} else {
		shown, m.Ticket = f.Held.Machine, pki.TicketOf(f.Held.Machine)
	}
	// What the door does: the certificate has to be valid, and not revoked.
	if !w.now.Before(shown.NotAfter) || trust.Refusal(w.book.Revoked, shown) != nil {
		w.say("%s: %s refuses the certificate", name, w.now)
		return
	}
	next, err := w.book.Admit(m, step.Act == Renew)
	if err != nil {
		w.say("%s: %s: %v", name, w.now, err)
		return
	}
	w.book = next
	if w.removed[m.Ticket] {
		w.fail("%s got certificates after it was removed", name)
	}
	if w.certified[m.Ticket] == nil {
		w.certified[m.Ticket] = map[string]bool{}
	}
	if w.certified[m.Ticket][m.Key] = true; len(w.certified[m.Ticket]) > 1 {
		w.fail("two keys got certificates by one ticket")
	}
	if len(w.book.Members) > 1 {
		w.fail("two machines of one name")
	}
	if w.lost() {
		w.say("%s: %s: the answer is lost", name, w.now)
		return
	}
	issue := func(ca *pki.CA) *x509.Certificate {
		leaf, err := ca.Issue(pki.Spec{CN: "w", Usage: pki.Both, IPs: []netip.Addr{address}, TTL: life, Now: w.now, Key: n.key, Ticket: m.Ticket})
		if err != nil {
			w.t.Fatal(err)
		}
		return leaf.Cert
	}
	n.held = Held{issue(authorities[1]), []*x509.Certificate{issue(authorities[2])}, f.Addresses}
	w.say("%s: %s: has certificates by ticket %.6s", name, w.now, m.Ticket)
}

// event is something that happens to the world.
func (w *world) event() {
	switch w.random.IntN(8) {
	case 0: // the operator invites the machine, or whoever has its configuration
		if leaf := w.invite(); leaf != nil {
			for i, n := range w.nodes {
				if i == 0 || w.random.IntN(2) == 0 {
					n.ticket = leaf
				}
			}
			w.say("%s: invited, ticket %.6s", w.now, pki.Serial(leaf.Cert))
		}
	case 1: // and takes it out
		next, tickets, err := w.book.Remove("w", w.now, "operator")
		if err == nil {
			w.book = next
			w.say("%s: removed", w.now)
		}
		for _, ticket := range tickets {
			w.removed[ticket] = true
		}
	case 2: // a machine loses its disk
		w.nodes[w.random.IntN(len(w.nodes))].held = Held{}
	case 3: // or its clock
		w.nodes[w.random.IntN(len(w.nodes))].ahead = time.Duration(w.random.IntN(2000)-1000) * time.Hour
	case 4:
		w.now = w.now.Add(time.Duration(w.random.IntN(60*24)) * time.Hour)
	default:
		w.now = w.now.Add(time.Duration(w.random.IntN(30)) * time.Minute)
	}
}

// TestFaults: no ticket is good for two machines, nobody who was removed gets anything more, and a machine that is invited and let be is
// one of the cluster soon.
func TestFaults(t *testing.T) {
	const seeds = 2000
	joined := 0
	for seed := range uint64(seeds) {
		w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), now: begin, certified: map[string]map[string]bool{}, removed: map[string]bool{}}
		w.nodes = []*node{{key: keys[1], at: address}, {key: keys[2], at: address.Next()}}
		for range 30 {
			w.event()
			for _, i := range w.random.Perm(len(w.nodes)) {
				w.turn(fmt.Sprint("machine ", i), w.nodes[i])
			}
		}
		// From here on nothing happens but that machine 0 is invited anew; messages still get lost.
		if next, _, err := w.book.Remove("w", w.now, "operator"); err == nil {
			w.book = next
		}
		n := w.nodes[0]
		n.ahead = 0
		if n.ticket = w.invite(); n.ticket == nil {
			w.fail("seed %d: cannot be invited after it was removed", seed)
		}
		ok := false
		for tries := 0; tries < 60 && !ok; tries++ {
			w.now = w.now.Add(3 * time.Second)
			w.turn("machine 0", n)
			ok = n.held.Machine != nil && pki.TicketOf(n.held.Machine) == pki.Serial(n.ticket.Cert)
		}
		if !ok {
			w.fail("seed %d: a machine that was invited has not joined", seed)
		}
		if members := w.book.Members; len(members) != 1 || members[0].Key != pki.KeyFingerprint(&keys[1].PublicKey) {
			w.fail("seed %d: the members are %v", seed, members)
		}
		joined += len(w.certified)
	}
	if joined < seeds {
		t.Errorf("only %d tickets were used in %d worlds", joined, seeds)
	}
}

// TestNext is the table of Next.
func TestNext(t *testing.T) {
	issue := func(ca *pki.CA, cn, ticket string, at time.Time, ttl time.Duration) *x509.Certificate {
		leaf, err := ca.Issue(pki.Spec{CN: cn, Usage: pki.Both, IPs: []netip.Addr{address}, TTL: ttl, Now: at, Key: keys[1], Ticket: ticket})
		if err != nil {
			t.Fatal(err)
		}
		return leaf.Cert
	}
	ticket := issue(authorities[0], "w", "", begin, time.Hour)
	own := func(at time.Time) Held {
		return Held{issue(authorities[1], "w", pki.Serial(ticket), at, life), []*x509.Certificate{issue(authorities[2], "system:node:w", pki.Serial(ticket), at, life)}, []netip.Addr{address}}
	}
	older := Held{Machine: issue(authorities[1], "w", "1234", begin, life)}
	stranger := Held{Machine: issue(authorities[2], "w", "1234", begin, life)}
	other := Held{Machine: issue(authorities[1], "v", "1234", begin, life)}
	if s := Next(Facts{Now: begin, Name: "w", Addresses: []netip.Addr{address}, Held: own(begin),
		MachineCAs: []*x509.Certificate{authorities[0].Cert, authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}}); s.Act != Renew || !s.Usable {
		t.Errorf("by an authority that issues no more: %+v", s)
	}
	for _, c := range []struct {
		name   string
		held   Held
		ticket *x509.Certificate
		after  time.Duration
		at     []netip.Addr
		want   Act
		usable bool
		why    string
	}{
		{"nothing at all", Held{}, nil, 0, []netip.Addr{address}, Rest, false, "this machine has not joined the cluster yet, and there is no ticket (Machine.spec.join); `orlopctl nodes add` gives one"},
		{"a ticket", Held{}, ticket, 0, []netip.Addr{address}, Join, false, "this machine has not joined the cluster yet"},
		{"a ticket that ended", Held{}, ticket, 2 * time.Hour, []netip.Addr{address}, Rest, false, "this machine has not joined the cluster yet, and its ticket ended at 2026-05-01T13:00:00Z; `orlopctl nodes add` gives another one"},
		{"no address", Held{}, ticket, 0, nil, Rest, false, "it has no address yet"},
		{"young", own(begin), ticket, time.Minute, []netip.Addr{address}, Rest, true, ""},
		{"young, its ticket ended", own(begin), ticket, 48 * time.Hour, []netip.Addr{address}, Rest, true, ""},
		{"old", own(begin), nil, 61 * 24 * time.Hour, []netip.Addr{address}, Renew, true, ""},
		{"ended", own(begin), nil, 91 * 24 * time.Hour, []netip.Addr{address}, Renew, true, "the certificates of this machine ended at 2026-07-30T12:00:00Z, or its clock is wrong"},
		{"ended, with a ticket", own(begin.Add(-91 * 24 * time.Hour)), ticket, 0, []netip.Addr{address}, Join, true, "the certificates of this machine ended at 2026-04-30T12:00:00Z, or its clock is wrong"},
		{"of the future", own(begin.Add(48 * time.Hour)), nil, 0, []netip.Addr{address}, Renew, true, "the certificates of this machine begin at 2026-05-03T11:55:00Z, or its clock is wrong"},
		{"another address", own(begin), nil, time.Minute, []netip.Addr{netip.MustParseAddr("10.0.0.22")}, Renew, true, ""},
		{"invited anew", older, ticket, time.Minute, []netip.Addr{address}, Join, true, ""},
		{"of another cluster", stranger, ticket, time.Minute, []netip.Addr{address}, Join, false, "what this machine has is of another cluster"},
		{"of another name", other, ticket, time.Minute, []netip.Addr{address}, Join, false, "what this machine has is of a machine called v"},
	} {
		s := Next(Facts{Now: begin.Add(c.after), Name: "w", Addresses: c.at, MachineCAs: []*x509.Certificate{authorities[1].Cert}, NodeCAs: []*x509.Certificate{authorities[2].Cert}, Held: c.held, Ticket: c.ticket})
		why := ""
		if s.Why != nil {
			why = s.Why.Error()
		}
		if s.Act != c.want || s.Usable != c.usable || why != c.why {
			t.Errorf("%s: %+v", c.name, s)
		}
		if rests := s.Act == Rest && s.Usable; rests == s.Until.IsZero() {
			t.Errorf("%s: until %s", c.name, s.Until)
		}
	}
}
