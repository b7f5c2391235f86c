package dhcp6

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// t0 is the time at which each test starts.
var t0 = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// noJitter is the random number for which the jitter is 0.
const noJitter = 1 << 31

var (
	leased    = netip.MustParseAddr("2001:db8::5")
	delegated = netip.MustParsePrefix("2001:db8:100::/56")
	granted   = Lease{
		Server:    "0001",
		Addresses: []Address{{leased, 600 * time.Second, 800 * time.Second}},
		T1:        400 * time.Second, T2: 700 * time.Second,
	}
	stateful = Mode{Addresses: true}
)

// script passes events to the state machine and returns its actions as text.
type script struct {
	state State
	now   time.Time
	wake  time.Time
}

// do passes an event to the state machine. It returns the actions and the next phase as text.
func (w *script) do(ev Event) string {
	ev.At, ev.Rand = w.now, noJitter
	if ev.Reply != nil && ev.Reply.XID == 0 {
		ev.Reply.XID = w.state.XID
	}
	var out []string
	next, actions := Step(w.state, ev)
	w.state = next
	for _, a := range actions {
		switch a.Kind {
		case Send:
			out = append(out, say(a.Message))
		case Wake:
			w.wake = a.At
			if a.At.IsZero() {
				out = append(out, "sleep")
			} else {
				out = append(out, fmt.Sprintf("wake in %v", a.At.Sub(w.now)))
			}
		case Apply:
			out = append(out, "apply"+content(a.Lease))
		case Drop:
			out = append(out, "drop")
		case End:
			out = append(out, "end")
		}
	}
	return strings.Join(append(out, next.Phase.String()), ", ")
}

func content(l *Lease) (s string) {
	for _, a := range l.Addresses {
		s += " " + a.Addr.String()
	}
	for _, p := range l.Prefixes {
		s += " " + p.Prefix.String()
	}
	return s
}

func say(m Message) string {
	s := m.Kind.String()
	if m.Lease != nil {
		s += content(m.Lease)
	}
	if m.Server != "" {
		s += " to " + m.Server
	}
	return s
}

// event returns the event for a word of a script. Most words are messages of the server, with the
// lease granted if the code does not replace it.
func (w *script) event(word string) Event {
	reply := func(change func(*Reply)) Event {
		r := &Reply{Lease: granted}
		change(r)
		return Event{Kind: Received, Reply: r}
	}
	nothing := func(r *Reply) { r.Lease = Lease{Server: "0001", T1: defaultRefresh, T2: defaultRefresh} }
	switch word {
	case "up":
		return Event{Kind: LinkReady}
	case "down":
		return Event{Kind: LinkNotReady}
	case "tick":
		w.now = w.wake
		return Event{Kind: Tick}
	case "advertise":
		return reply(func(r *Reply) { r.Advertise = true })
	case "better":
		return reply(func(r *Reply) { r.Advertise, r.Preference, r.Lease.Server = true, 7, "0007" })
	case "best":
		return reply(func(r *Reply) { r.Advertise, r.Preference = true, 255 })
	case "empty":
		return reply(func(r *Reply) { nothing(r); r.Advertise, r.Rejects = true, "NoAddrsAvail" })
	case "reply":
		return reply(func(*Reply) {})
	case "slow": // an Advertise without addresses, but with SOL_MAX_RT
		return reply(func(r *Reply) { nothing(r); r.Advertise, r.MaxWait = true, time.Hour })
	case "other":
		return reply(func(r *Reply) { r.Lease.Server = "0099" })
	case "rapid":
		return reply(func(r *Reply) { r.Rapid = true })
	case "stale":
		return reply(func(r *Reply) { r.XID = w.state.XID + 1 })
	case "yes":
		return reply(nothing)
	case "no":
		return reply(func(r *Reply) { nothing(r); r.Rejects = "NotOnLink" })
	case "no binding":
		return reply(func(r *Reply) { nothing(r); r.NoBinding = true })
	case "withdrawn":
		return reply(func(r *Reply) { nothing(r); r.Withdrawn = true })
	case "prefix":
		return reply(func(r *Reply) {
			r.Lease.Prefixes = []Prefix{{delegated, 600 * time.Second, 1000 * time.Second}}
		})
	case "duplicate":
		return Event{Kind: Duplicate, Addr: leased}
	case "release":
		return Event{Kind: Release}
	}
	panic(word)
}

// TestStep passes a list of events to the state machine, and checks the actions and the phase after
// each event.
func TestStep(t *testing.T) {
	stored := granted
	stored.Acquired = t0
	ended := stored
	ended.Acquired = t0.Add(-time.Hour)
	withPrefix := stored
	withPrefix.Prefixes = []Prefix{{delegated, 600 * time.Second, 1000 * time.Second}}
	use := func(l Lease) State { return State{Mode: stateful, Lease: &l, InUse: true} }
	for _, test := range []struct {
		name  string
		state State
		steps string // lines of the form "word = actions, phase"
	}{
		{"a first lease", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
advertise = soliciting
better = soliciting
tick = request 2001:db8::5 to 0007, wake in 250ms, requesting
reply = requesting
stale = requesting`},
		{"a first lease, from the reply on", State{Mode: stateful, Phase: Requesting, Ready: true, Sent: t0, Offer: &Reply{Lease: granted}}, `
reply = apply 2001:db8::5, wake in 6m40s, bound
tick = renew 2001:db8::5 to 0001, wake in 2m30s, renewing
reply = apply 2001:db8::5, wake in 6m40s, bound
tick = renew 2001:db8::5 to 0001, wake in 2m30s, renewing
tick = renew 2001:db8::5 to 0001, wake in 1m15s, renewing
no = renewing
tick = renew 2001:db8::5 to 0001, wake in 37.5s, renewing
tick = renew 2001:db8::5 to 0001, wake in 18.75s, renewing
tick = renew 2001:db8::5 to 0001, wake in 10s, renewing
tick = renew 2001:db8::5 to 0001, wake in 8.75s, renewing
tick = rebind 2001:db8::5, wake in 50s, rebinding
yes = rebinding
other = apply 2001:db8::5, wake in 6m40s, bound`},
		{"the highest preference", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
best = request 2001:db8::5 to 0001, wake in 250ms, requesting
other = requesting
reply = apply 2001:db8::5, wake in 6m40s, bound`},
		{"rapid commit", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
reply = soliciting
rapid = apply 2001:db8::5, wake in 6m40s, bound`},
		{"a server without addresses", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
empty = soliciting
tick = solicit, wake in 500ms, soliciting`},
		{"silence after the advertisement", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
best = request 2001:db8::5 to 0001, wake in 250ms, requesting
tick = request 2001:db8::5 to 0001, wake in 500ms, requesting
tick = request 2001:db8::5 to 0001, wake in 1s, requesting
tick = request 2001:db8::5 to 0001, wake in 2s, requesting
tick = request 2001:db8::5 to 0001, wake in 4s, requesting
tick = solicit, wake in 250ms, soliciting`},
		{"rejections", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
best = request 2001:db8::5 to 0001, wake in 250ms, requesting
no = solicit, wake in 250ms, soliciting
best = request 2001:db8::5 to 0001, wake in 250ms, requesting
no = wake in 250ms, init
tick = solicit, wake in 250ms, soliciting`},
		{"a stored lease is confirmed", State{Mode: stateful, Lease: &stored}, `
up = confirm 2001:db8::5, wake in 250ms, confirming
yes = apply 2001:db8::5, wake in 6m40s, bound`},
		{"a stored lease of another link", State{Mode: stateful, Lease: &stored}, `
up = confirm 2001:db8::5, wake in 250ms, confirming
no = drop, solicit, wake in 250ms, soliciting`},
		{"no server answers for a stored lease", State{Mode: stateful, Lease: &stored}, `
up = confirm 2001:db8::5, wake in 250ms, confirming
tick = confirm 2001:db8::5, wake in 500ms, confirming
tick = confirm 2001:db8::5, wake in 1s, confirming
tick = drop, solicit, wake in 250ms, soliciting`},
		{"no server answers for a lease in use", use(stored), `
up = confirm 2001:db8::5, wake in 250ms, confirming
tick = confirm 2001:db8::5, wake in 500ms, confirming
tick = confirm 2001:db8::5, wake in 1s, confirming
tick = wake in 6m38.25s, bound`},
		{"an ended lease", State{Mode: stateful, Lease: &ended}, `
up = drop, solicit, wake in 250ms, soliciting`},
		{"a stored prefix", State{Mode: Mode{Addresses: true, Prefix: 56}, Lease: &withPrefix}, `
up = rebind 2001:db8::5 2001:db8:100::/56, wake in 250ms, confirming
prefix = apply 2001:db8::5 2001:db8:100::/56, wake in 6m40s, bound`},
		{"a stored prefix without an address, which is now wanted", State{Mode: Mode{Addresses: true, Prefix: 56}, Lease: &Lease{Prefixes: withPrefix.Prefixes, Acquired: t0}}, `
up = drop, solicit, wake in 250ms, soliciting`},
		{"the address ends before the prefix", State{Mode: Mode{Addresses: true, Prefix: 56}, Phase: Rebinding, Ready: true, Lease: &withPrefix, InUse: true}, `
tick at 13m30s = apply 2001:db8:100::/56, rebind 2001:db8:100::/56, wake in 1m35s, rebinding
tick at 16m40s = drop, solicit, wake in 250ms, soliciting`},
		{"only a prefix", State{Mode: Mode{Prefix: 56}}, `
up = solicit, wake in 250ms, soliciting
advertise = soliciting
prefix = soliciting
tick = solicit, wake in 500ms, soliciting`},
		{"settings only", State{}, `
up = information-request, wake in 250ms, informing
tick = information-request, wake in 500ms, informing
yes = apply, wake in 24h0m0s, informed
tick = information-request, wake in 250ms, informing
down = sleep, init
up = information-request, wake in 250ms, informing`},
		{"the server forgot the lease", State{Mode: stateful, Phase: Renewing, Ready: true, Lease: &stored, InUse: true}, `
no binding = request 2001:db8::5 to 0001, wake in 250ms, requesting
reply = apply 2001:db8::5, wake in 6m40s, bound`},
		{"the server withdraws the address", State{Mode: stateful, Phase: Renewing, Ready: true, Lease: &stored, InUse: true}, `
withdrawn = drop, solicit, wake in 250ms, soliciting`},
		{"the carrier is lost until the lease ends", State{Mode: stateful, Phase: Bound, Ready: true, Lease: &stored, InUse: true}, `
down = wake in 13m20s, init
tick = drop, sleep, init
up = solicit, wake in 250ms, soliciting`},
		{"another machine has the address", State{Mode: stateful, Phase: Bound, Ready: true, Lease: &stored, InUse: true}, `
duplicate = drop, decline 2001:db8::5 to 0001, wake in 250ms, declining
other = declining
yes = wake in 250ms, init
tick = solicit, wake in 250ms, soliciting
rapid = apply 2001:db8::5, wake in 6m40s, bound
duplicate = drop, decline 2001:db8::5 to 0001, wake in 250ms, declining
tick = decline 2001:db8::5 to 0001, wake in 500ms, declining
tick = decline 2001:db8::5 to 0001, wake in 1s, declining
tick = decline 2001:db8::5 to 0001, wake in 2s, declining
tick = wake in 500ms, init`},
		{"release", State{Mode: stateful, Phase: Bound, Ready: true, Lease: &stored, InUse: true}, `
release = drop, release 2001:db8::5 to 0001, wake in 250ms, releasing
release = releasing
up = releasing
yes = sleep, end, released`},
		{"release without an answer", State{Mode: stateful, Phase: Bound, Ready: true, Lease: &stored, InUse: true}, `
release = drop, release 2001:db8::5 to 0001, wake in 250ms, releasing
tick = release 2001:db8::5 to 0001, wake in 500ms, releasing
down = sleep, end, released`},
		{"release without a lease", State{Mode: stateful}, `
up = solicit, wake in 250ms, soliciting
release = sleep, end, released`},
		{"a server that demands a longer interval", State{Mode: stateful, Phase: Soliciting, Ready: true, Attempt: 20}, `
tick = solicit, wake in 2m0s, soliciting
slow = soliciting
tick = solicit, wake in 1h0m0s, soliciting`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := script{state: test.state, now: t0, wake: t0}
			for line := range strings.SplitSeq(strings.TrimSpace(test.steps), "\n") {
				word, want, _ := strings.Cut(line, " = ")
				if at, is := strings.CutPrefix(word, "tick at "); is {
					d, err := time.ParseDuration(at)
					if err != nil {
						t.Fatal(err)
					}
					w.wake, word = t0.Add(d), "tick"
				}
				if got := w.do(w.event(word)); got != want {
					t.Fatalf("%s: %s, want %s", word, got, want)
				}
			}
		})
	}
}

// TestRandomEvents passes random events to the state machine and checks three invariants. A lease
// that has ended is not in use. A client that waits for a server has a running timer, and so has a
// client with a lease but without a carrier. A released client performs no more actions.
func TestRandomEvents(t *testing.T) {
	words := []string{"up", "down", "tick", "tick", "tick", "advertise", "better", "best", "empty", "reply", "other", "rapid", "stale", "yes", "no", "no binding", "withdrawn", "prefix", "duplicate", "slow"}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 6))
		modes := []Mode{{}, stateful, {Prefix: 56}, {Addresses: true, Prefix: 56}}
		w := script{state: State{Mode: modes[r.IntN(len(modes))]}, now: t0, wake: t0}
		var log []string
		for range 200 {
			word := words[r.IntN(len(words))]
			if r.IntN(100) == 0 {
				word = "release"
			}
			if word == "tick" && w.wake.IsZero() {
				continue
			}
			was := w.state.Phase
			did := w.do(w.event(word))
			log = append(log, word+" = "+did)
			s := w.state
			waits := slices.Contains([]Phase{Soliciting, Requesting, Confirming, Renewing, Rebinding, Informing, Declining, Releasing}, s.Phase)
			switch {
			case was == Released && did != "released" && did != "sleep, end, released":
				t.Fatalf("seed %d: a released client performs an action: %s", seed, strings.Join(log, "\n"))
			case waits && w.wake.IsZero():
				t.Fatalf("seed %d: no timer runs: %s", seed, strings.Join(log, "\n"))
			case s.InUse && s.Lease.expired(w.now):
				t.Fatalf("seed %d: an ended lease is in use: %s", seed, strings.Join(log, "\n"))
			case s.InUse && !s.Ready && w.wake.IsZero() && !s.Lease.Expires().IsZero():
				t.Fatalf("seed %d: no timer ends the lease of a link without a carrier: %s", seed, strings.Join(log, "\n"))
			}
		}
	}
}
