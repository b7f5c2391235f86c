// Package joinrequest is how a machine without a ticket asks a control-plane machine to be let into
// its cluster, and what that one knows of those who ask, until an operator approves or denies
// (docs/decisions/0044-join-requests.md).
//
// The machine connects by TLS 1.3 under a protocol name of its own (ALPN), without a client
// certificate, and verifies whom it has reached. It sends one Request and gets one Answer; then the
// connection ends. Nothing that it says is believed before an operator has compared the fingerprint
// of its key with the one on its console. What it gets then is a ticket for that very key, and no
// more.
//
// The package decides and reads bytes; it looks at no clock and keeps no files.
package joinrequest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/jsonline"
)

// Protocol is the name by which TLS agrees on it (ALPN, RFC 7301).
const Protocol = "orlop-join/1"

// maxMessage is the most that either side reads, in bytes: a certificate, or a request for one, is
// less than 2 KiB.
const maxMessage = 16 << 10

// Request is what a machine sends.
type Request struct {
	Name string `json:"name"` // by which it wants to be let in
	// PKCS #10, DER, by the machine's own key: it proves that the key is the sender's
	CSR []byte `json:"key"`
}

// State is how it is with a request.
type State string

// The standings.
const (
	Pending  State = "waits"    // no operator has decided yet
	Approved State = "approved" // the answer has the ticket
	Denied   State = "denied"   // by an operator
	Rejected State = "refused"  // it is none that an operator is asked about: Reason says why
)

// Answer is what a control-plane machine sends back.
type Answer struct {
	State State `json:"standing"`
	// X.509, DER: the ticket, for the key that was shown
	Certificate []byte `json:"certificate,omitempty"`
	Reason      string `json:"reason,omitempty"` // a sentence
}

// Send sends a request over a connection, and returns the answer.
func Send(conn io.ReadWriter, r Request) (Answer, error) {
	var a Answer
	err := send(conn, r)
	if err == nil {
		err = receive(conn, &a)
	}
	if err == nil && !slices.Contains([]State{Pending, Approved, Denied, Rejected}, a.State) {
		err = errors.New("join request: the answer makes no sense; compare the versions of the two machines")
	}
	return a, err
}

// Serve takes one request from a connection, and sends what judge makes of it.
func Serve(conn io.ReadWriter, judge func(Request) Answer) error {
	var r Request
	if err := receive(conn, &r); err != nil {
		return err
	}
	return send(conn, judge(r))
}

func send(conn io.Writer, message any) error { return jsonline.Send(conn, "join request", message) }

func receive(conn io.Reader, message any) error {
	return jsonline.Receive(conn, "join request", maxMessage, message)
}

// Interval is how often a machine asks while it waits.
const Interval = 10 * time.Second

const (
	// patience is how long a machine is listed that asks no more.
	patience = 3 * time.Minute
	// denial is how long it is remembered that one was denied, after it has asked last.
	denial = 24 * time.Hour
	// most is how many can be listed, and perAddress how many of one address: anybody in the
	// network can ask.
	most, perAddress = 64, 4
	// mostDenied bounds those of whom nothing but the denial is known.
	mostDenied = 256
)

// Machine is one that asks.
type Machine struct {
	Name, Address string
	Key           string    // fingerprint of its key (pki.KeyFingerprint)
	Request       []byte    // PKCS #10, DER
	Since, Last   time.Time // when it asked first, and last
	// Ticket is what it gets when it asks again, and TicketEnds when that is good no more; zero
	// before it is approved.
	Ticket     []byte
	TicketEnds time.Time
	Denied     bool
}

// List is all that ask, by the fingerprint of their key. It is a value: what changes it returns
// another one.
type List map[string]Machine

// Record is the list after a machine has asked, with its answer. One that asks by another name than
// before asks anew.
func (l List) Record(m Machine, now time.Time) (List, Answer) {
	l = l.at(now)
	old, known := l[m.Key]
	if known && old.Denied { // what it is called now is for an operator who thinks better of it
		m.Since, m.Last, m.Denied = old.Since, now, true
		l[m.Key] = m
		return l, Answer{State: Denied, Reason: "an operator has denied that this machine joins"}
	}
	if known && old.Name == m.Name {
		m.Since, m.Ticket, m.TicketEnds = old.Since, old.Ticket, old.TicketEnds
	} else {
		m.Since = now
	}
	if !known {
		all, same := 0, 0
		for _, o := range l {
			// an operator has decided, and there are no more of those than he has named
			if o.Denied || len(o.Ticket) > 0 {
				continue
			}
			if all++; o.Address == m.Address {
				same++
			}
		}
		switch {
		case all >= most:
			return l, Answer{State: Rejected, Reason: fmt.Sprintf("%d machines ask at present; try again", all)}
		case same >= perAddress:
			return l, Answer{State: Rejected, Reason: fmt.Sprintf("%d machines ask from the address %s at present; try again", same, m.Address)}
		}
	}
	m.Last, m.Denied = now, false
	l[m.Key] = m
	if len(m.Ticket) > 0 {
		return l, Answer{State: Approved, Certificate: m.Ticket}
	}
	return l, Answer{State: Pending}
}

// Pending are those about whom an operator has to decide, in the order in which they came.
func (l List) Pending(now time.Time) []Machine {
	var out []Machine
	for _, m := range l.at(now) {
		if !m.Denied && len(m.Ticket) == 0 {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Machine) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	return out
}

// Find is the machine that has asked by a name, and whose key has a fingerprint, or why there is
// none. It may have been denied.
func (l List) Find(name, key string, now time.Time) (Machine, error) {
	l = l.at(now)
	m, found := l[key]
	switch {
	case found && m.Name == name:
		return m, nil
	case found && m.Name != "":
		return m, fmt.Errorf("machine %s: the one with this fingerprint asks as %s", name, m.Name)
	}
	for _, o := range l.Pending(now) {
		if o.Name == name {
			return m, fmt.Errorf("machine %s: the one that asks as this has another fingerprint: it is not the machine whose console shows %s, or you have read another line", name, key)
		}
	}
	return m, fmt.Errorf("machine %s: it does not ask here at present; `orlopctl nodes pending` shows who does", name)
}

// Approved is the list in which a machine gets a ticket when it asks next.
func (l List) Approved(key string, ticket []byte, ends time.Time) List {
	l = maps.Clone(l)
	if m, found := l[key]; found {
		m.Ticket, m.TicketEnds, m.Denied = ticket, ends, false
		l[key] = m
	}
	return l
}

// Denied is the list in which nobody is asked about a key any more. It need not have asked here.
func (l List) Denied(key string, now time.Time) List {
	l = l.at(now)
	// told by others of the control plane, or by an operator; they are few
	if _, found := l[key]; !found && len(l) >= mostDenied {
		return l
	}
	m := l[key]
	m.Key, m.Denied, m.Last, m.Ticket, m.TicketEnds = key, true, now, nil, time.Time{}
	l[key] = m
	return l
}

// at is a list of its own without those that ask no more. An approved one stays as long as its
// ticket can be used.
func (l List) at(now time.Time) List {
	out := List{}
	for key, m := range l {
		switch {
		case m.Denied && now.Sub(m.Last) >= denial, !m.Denied && now.Sub(m.Last) >= patience && !now.Before(m.TicketEnds):
			continue
		case len(m.Ticket) > 0 && !now.Before(m.TicketEnds):
			m.Ticket, m.TicketEnds = nil, time.Time{} // it waits again
		}
		out[key] = m
	}
	return out
}
