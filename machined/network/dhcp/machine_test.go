package dhcp

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
	theServer = netip.MustParseAddr("192.0.2.1")
	granted   = Lease{
		Address: netip.MustParsePrefix("192.0.2.5/24"), Server: theServer,
		Duration: 800 * time.Second, T1: 400 * time.Second, T2: 700 * time.Second,
	}
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
			out = append(out, fmt.Sprintf("apply %v", a.Lease.Address))
		case Drop:
			out = append(out, "drop")
		}
	}
	return strings.Join(append(out, next.Phase.String()), ", ")
}

func say(m Message) string {
	s := "request"
	if m.Discover {
		s = "discover"
	}
	for _, f := range []struct {
		name string
		ip   netip.Addr
	}{{"for", m.Requested}, {"of", m.Server}, {"from", m.Client}, {"to", m.To}} {
		if f.ip.IsValid() {
			s += " " + f.name + " " + f.ip.String()
		}
	}
	return s
}

// event returns the event for a word: up, down, tick (at the time of the last Wake), offer, ack,
// rapid (an ACK with Rapid Commit), nak, other-nak (of another server), stale (an ACK with another
// transaction ID).
func (w *script) event(word string) Event {
	reply := func(k ReplyKind) Event {
		return Event{Kind: Received, Reply: &Reply{Kind: k, Lease: granted}}
	}
	switch word {
	case "up":
		return Event{Kind: LinkUp}
	case "down":
		return Event{Kind: LinkDown}
	case "tick":
		w.now = w.wake
		return Event{Kind: Tick}
	case "offer":
		return reply(Offer)
	case "ack":
		return reply(Ack)
	case "rapid":
		ev := reply(Ack)
		ev.Reply.Rapid = true
		return ev
	case "nak":
		return reply(Nak)
	case "other-nak":
		ev := reply(Nak)
		ev.Reply.Lease.Server = netip.MustParseAddr("192.0.2.99")
		return ev
	case "stale":
		ev := reply(Ack)
		ev.Reply.XID = w.state.XID + 1
		return ev
	}
	panic(word)
}

// TestStep passes a list of events to the state machine, and checks the actions and the phase after
// each event.
func TestStep(t *testing.T) {
	remembered := granted
	remembered.Acquired = t0
	ended := remembered
	ended.Acquired = t0.Add(-time.Hour)
	forever := granted
	forever.Duration, forever.T1, forever.T2 = Forever, Forever/2, Forever/8*7
	const bind = "apply 192.0.2.5/24, wake in 6m40s, bound"
	for _, c := range []struct {
		name  string
		start State
		lines []string // "event: actions, phase"
	}{
		{name: "the four messages", lines: []string{
			"up: discover, wake in 250ms, selecting",
			"offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"ack: " + bind,
		}},
		{name: "rapid commit", lines: []string{"up: discover, wake in 250ms, selecting", "rapid: " + bind}},
		{name: "an ACK without rapid commit is no answer to a discover", lines: []string{
			"up: discover, wake in 250ms, selecting", "ack: selecting",
		}},
		{name: "no answer: the delay doubles, up to 64 s", lines: []string{
			"up: discover, wake in 250ms, selecting", "tick: discover, wake in 500ms, selecting", "tick: discover, wake in 1s, selecting",
			"tick: discover, wake in 2s, selecting", "tick: discover, wake in 4s, selecting", "tick: discover, wake in 8s, selecting",
			"tick: discover, wake in 16s, selecting", "tick: discover, wake in 32s, selecting", "tick: discover, wake in 1m4s, selecting",
			"tick: discover, wake in 1m4s, selecting",
		}},
		{name: "an offer without an ACK", lines: []string{
			"up: discover, wake in 250ms, selecting", "offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"tick: request for 192.0.2.5 of 192.0.2.1, wake in 500ms, requesting", "tick: request for 192.0.2.5 of 192.0.2.1, wake in 1s, requesting",
			"tick: request for 192.0.2.5 of 192.0.2.1, wake in 2s, requesting", "tick: request for 192.0.2.5 of 192.0.2.1, wake in 4s, requesting",
			"tick: discover, wake in 250ms, selecting",
		}},
		{name: "NAKs: a discover at once after the first, then after growing delays", lines: []string{
			"up: discover, wake in 250ms, selecting", "offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"other-nak: requesting", "stale: requesting",
			"nak: discover, wake in 250ms, selecting", "offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"nak: wake in 250ms, init", "tick: discover, wake in 250ms, selecting", "offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"nak: wake in 500ms, init", "tick: discover, wake in 250ms, selecting", "offer: request for 192.0.2.5 of 192.0.2.1, wake in 250ms, requesting",
			"ack: " + bind,
		}},
		{name: "renewed, then rebinding without an answer, then lost", start: State{Carrier: true, Phase: Bound, Lease: &remembered, InUse: true}, lines: []string{
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 2m30s, renewing",
			"ack: " + bind,
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 2m30s, renewing",
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 1m15s, renewing",
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 1m0s, renewing",
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 15s, renewing",
			"tick: request from 192.0.2.5, wake in 1m0s, rebinding",
			"tick: request from 192.0.2.5, wake in 40s, rebinding",
			"tick: drop, discover, wake in 250ms, selecting",
		}},
		{name: "a NAK while renewing", start: State{Carrier: true, Phase: Bound, Lease: &remembered, InUse: true}, lines: []string{
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 2m30s, renewing",
			"nak: drop, discover, wake in 250ms, selecting",
		}},
		{name: "rebound", start: State{Carrier: true, Phase: Renewing, Lease: &remembered, InUse: true, Attempt: 3}, lines: []string{
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 2m30s, renewing", "tick: request from 192.0.2.5 to 192.0.2.1, wake in 1m15s, renewing",
			"tick: request from 192.0.2.5 to 192.0.2.1, wake in 1m0s, renewing", "tick: request from 192.0.2.5 to 192.0.2.1, wake in 15s, renewing",
			"tick: request from 192.0.2.5, wake in 1m0s, rebinding", "ack: " + bind,
		}},
		{name: "a stored lease", start: State{Lease: &remembered}, lines: []string{
			"up: request for 192.0.2.5, wake in 250ms, rebooting", "ack: " + bind,
		}},
		{name: "a stored lease and a NAK", start: State{Lease: &remembered}, lines: []string{
			"up: request for 192.0.2.5, wake in 250ms, rebooting", "nak: drop, discover, wake in 250ms, selecting",
		}},
		{name: "a stored lease and no answer", start: State{Lease: &remembered}, lines: []string{
			"up: request for 192.0.2.5, wake in 250ms, rebooting", "tick: request for 192.0.2.5, wake in 500ms, rebooting",
			"tick: request for 192.0.2.5, wake in 1s, rebooting", "tick: drop, discover, wake in 250ms, selecting",
		}},
		{name: "a stored lease that has ended", start: State{Lease: &ended}, lines: []string{"up: drop, discover, wake in 250ms, selecting"}},
		{name: "the carrier flaps: the lease is retained and verified", start: State{Carrier: true, Phase: Bound, Lease: &remembered, InUse: true}, lines: []string{
			"down: wake in 13m20s, init", "up: request for 192.0.2.5, wake in 250ms, rebooting", "up: rebooting",
			"tick: request for 192.0.2.5, wake in 500ms, rebooting", "tick: request for 192.0.2.5, wake in 1s, rebooting",
			"tick: wake in 6m38.25s, bound", "tick: request from 192.0.2.5 to 192.0.2.1, wake in 2m30s, renewing",
		}},
		{name: "the carrier stays away until the lease ends", start: State{Carrier: true, Phase: Bound, Lease: &remembered, InUse: true}, lines: []string{
			"down: wake in 13m20s, init", "tick: drop, sleep, init", "up: discover, wake in 250ms, selecting",
		}},
		{name: "the carrier is lost during the search", lines: []string{
			"up: discover, wake in 250ms, selecting", "down: sleep, init", "offer: init", "up: discover, wake in 250ms, selecting",
		}},
		{name: "a lease without an end", start: State{Carrier: true, Phase: Bound, Lease: &forever, InUse: true}, lines: []string{
			"down: sleep, init", "up: request for 192.0.2.5, wake in 250ms, rebooting", "tick: request for 192.0.2.5, wake in 500ms, rebooting",
			"tick: request for 192.0.2.5, wake in 1s, rebooting", "tick: sleep, bound",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &script{state: c.start, now: t0, wake: t0.Add(granted.T1)}
			for _, line := range c.lines {
				word, want, _ := strings.Cut(line, ": ")
				if got := w.do(w.event(word)); got != want {
					t.Fatalf("after %q at %v:\n got %s\nwant %s", word, w.now.Sub(t0), got, want)
				}
			}
		})
	}
}

// TestStepNeverSticks passes random events to the state machine and checks three invariants. A
// client with a carrier always has a running timer. A lease is in use from the action Apply to the
// action Drop. No lease stays in use after its end.
func TestStepNeverSticks(t *testing.T) {
	words := []string{"up", "down", "tick", "tick", "tick", "offer", "ack", "rapid", "nak", "other-nak", "stale"}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := &script{now: t0}
		inUse := false
		var trace []string
		for range 60 {
			word := words[r.IntN(len(words))]
			if word == "tick" && w.wake.IsZero() {
				continue
			}
			done := w.do(w.event(word))
			trace = append(trace, word+": "+done)
			for action := range strings.SplitSeq(done, ", ") {
				switch {
				case strings.HasPrefix(action, "apply"):
					inUse = true
				case action == "drop":
					inUse = false
				}
			}
			switch {
			case inUse != w.state.InUse:
				t.Fatalf("the state says that the lease is in use: %v, the actions say: %v\n%s", w.state.InUse, inUse, strings.Join(trace, "\n"))
			case w.state.Carrier && (w.wake.IsZero() || w.wake.Before(w.now)):
				t.Fatalf("no timer runs\n%s", strings.Join(trace, "\n"))
			case w.state.InUse && w.state.Lease.Expires().Before(w.wake):
				t.Fatalf("the lease ends before the timer\n%s", strings.Join(trace, "\n"))
			}
		}
	}
}

// TestBackoffJitter checks that the longest delay, 64 s, has a jitter of up to a quarter in both
// directions.
func TestBackoffJitter(t *testing.T) {
	var all []time.Duration
	for _, r := range []uint32{0, 1 << 30, noJitter, 3 << 30, 1<<32 - 1} {
		all = append(all, sendDelay(20, r))
	}
	if all[0] != 48*time.Second || all[4] > 80*time.Second || all[4] < 79*time.Second || !slices.IsSorted(all) {
		t.Errorf("the delays are %v, want 48 s to 80 s, in increasing order", all)
	}
}
