// Package joinrequest implements the protocol by which a worker without a ticket requests to join a
// cluster, and the list of these requests on a control-plane machine until an operator approves or
// denies them (docs/decisions/0044-join-requests.md).
//
// The worker connects with TLS 1.3 and its own ALPN protocol name. It has no client certificate,
// and it verifies the server. It sends a Request and gets an Answer; then the connection ends. The
// control plane trusts no statement of the worker until an operator has compared the fingerprint of
// the worker's key with the fingerprint on the worker's console. An approved worker gets only a
// ticket for exactly this key.
//
// The package only makes decisions and parses messages. It reads no clock and stores no files.
//
// The JSON names and the values of State are those of version 0.1.0, because workers and control
// planes of both versions speak the same protocol: the field key holds the CSR, and the field
// standing holds the state.
package joinrequest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Protocol is the ALPN protocol name (RFC 7301).
const Protocol = "orlop-join/1"

// maxMessage is the maximum size of a received message in bytes. A certificate or a CSR is smaller
// than 2 KiB.
const maxMessage = 16 << 10

// Request is the message of the worker.
type Request struct {
	Name string `json:"name"` // requested machine name
	// PKCS #10, DER, signed with the machine's key; the signature proves that the sender has the
	// key
	CSR []byte `json:"key"`
}

// State is the state of a join request.
type State string

// States of a join request.
const (
	Pending  State = "waits"    // no operator has decided yet
	Approved State = "approved" // the answer contains the ticket
	Denied   State = "denied"   // by an operator
	Rejected State = "refused"  // the request is not listed for an operator; Reason says why
)

// Answer is the message of the control-plane machine.
type Answer struct {
	State State `json:"standing"`
	// X.509, DER: the ticket for the key of the request
	Certificate []byte `json:"certificate,omitempty"`
	Reason      string `json:"reason,omitempty"` // a sentence
}

// Send sends a request over a connection and returns the answer.
func Send(conn io.ReadWriter, r Request) (Answer, error) {
	var a Answer
	err := send(conn, r)
	if err == nil {
		err = receive(conn, &a)
	}
	if err == nil && !slices.Contains([]State{Pending, Approved, Denied, Rejected}, a.State) {
		err = errors.New("join request: cannot parse answer; compare the versions of the two machines")
	}
	return a, err
}

// Serve receives one request from a connection and sends the answer that judge returns.
func Serve(conn io.ReadWriter, judge func(Request) Answer) error {
	var r Request
	if err := receive(conn, &r); err != nil {
		return err
	}
	return send(conn, judge(r))
}

// send writes a message as a line of JSON.
func send(conn io.Writer, message any) error {
	if err := json.NewEncoder(conn).Encode(message); err != nil {
		return fmt.Errorf("join request: cannot send: %w", err)
	}
	return nil
}

func receive(conn io.Reader, message any) error {
	if err := json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(message); err != nil {
		return fmt.Errorf("join request: cannot parse the message of the peer: %w", err)
	}
	return nil
}

// Interval is the period at which a waiting machine repeats its request.
const Interval = 10 * time.Second

const (
	// expireAfter is how long a machine stays listed after its last request.
	expireAfter = 3 * time.Minute
	// denialTTL is how long a denial stays in memory after the last request of the machine.
	denialTTL = 24 * time.Hour
	// maxPending is the maximum number of listed machines, and maxPerAddress the maximum for one
	// address. Every machine in the network can send requests.
	maxPending, maxPerAddress = 64, 4
	// maxDenied bounds the entries for machines that have sent no request here: with so many
	// entries in the list, another machine cannot be denied in advance.
	maxDenied = 256
)

// Machine is a machine with a join request.
type Machine struct {
	Name, Address string
	Key           string    // fingerprint of its key (pki.KeyFingerprint)
	Request       []byte    // PKCS #10, DER
	Since, Last   time.Time // time of the first and the last request
	// Ticket is the certificate in the answer to the next request, and TicketEnds is its expiry.
	// Both are zero before the approval.
	Ticket     []byte
	TicketEnds time.Time
	Denied     bool
}

// List maps key fingerprints to the machines with join requests. It is immutable: methods such as
// Record return a changed copy.
type List map[string]Machine

// Record returns the list after the request m, and the answer to m. If the key requested another
// name before, m is a new request without the former ticket.
func (l List) Record(m Machine, now time.Time) (List, Answer) {
	l = l.current(now)
	old, known := l[m.Key]
	// The entry of a denied machine gets the new name, too: an operator can still approve the
	// machine.
	if known && old.Denied {
		m.Since, m.Last, m.Denied = old.Since, now, true
		l[m.Key] = m
		return l, Answer{State: Denied, Reason: "an operator has denied the join request"}
	}
	if known && old.Name == m.Name {
		m.Since, m.Ticket, m.TicketEnds = old.Since, old.Ticket, old.TicketEnds
	} else {
		m.Since = now
	}
	if !known {
		all, same := 0, 0
		for _, o := range l {
			// An operator has decided on this request. Such entries do not count for the limits
			// below: their number is bounded by the number of decisions.
			if o.Denied || len(o.Ticket) > 0 {
				continue
			}
			if all++; o.Address == m.Address {
				same++
			}
		}
		switch {
		case all >= maxPending:
			return l, Answer{State: Rejected, Reason: fmt.Sprintf("too many join requests (%d); try again later", all)}
		case same >= maxPerAddress:
			return l, Answer{State: Rejected, Reason: fmt.Sprintf("too many join requests (%d) from the address %s; try again later", same, m.Address)}
		}
	}
	m.Last, m.Denied = now, false
	l[m.Key] = m
	if len(m.Ticket) > 0 {
		return l, Answer{State: Approved, Certificate: m.Ticket}
	}
	return l, Answer{State: Pending}
}

// Pending returns the requests without a decision, in the order of their arrival.
func (l List) Pending(now time.Time) []Machine {
	var out []Machine
	for _, m := range l.current(now) {
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

// Find returns the machine with this name and key fingerprint, or an error. It also finds a denied
// machine.
func (l List) Find(name, key string, now time.Time) (Machine, error) {
	l = l.current(now)
	m, found := l[key]
	switch {
	case found && m.Name == name:
		return m, nil
	case found && m.Name != "":
		return m, fmt.Errorf("machine %s: the machine with this fingerprint requests the name %s", name, m.Name)
	}
	for _, o := range l.Pending(now) {
		if o.Name == name {
			return m, fmt.Errorf("machine %s: the machine that requests this name has another fingerprint: it is not the machine whose console shows %s, or you have read another line", name, key)
		}
	}
	return m, fmt.Errorf("machine %s: no join request here at present; `orlopctl nodes pending` lists them", name)
}

// Approved returns the list in which the next request of the machine is answered with a ticket.
func (l List) Approved(key string, ticket []byte, ends time.Time) List {
	l = maps.Clone(l)
	if m, found := l[key]; found {
		m.Ticket, m.TicketEnds, m.Denied = ticket, ends, false
		l[key] = m
	}
	return l
}

// Denied returns the list in which the key is denied. It adds an entry if the machine has sent no
// request to this control-plane machine.
func (l List) Denied(key string, now time.Time) List {
	l = l.current(now)
	// The denial is from an operator, directly or by another control-plane machine. Operators deny
	// few machines, so the limit is not reached in practice. Beyond the limit, a denial is not
	// stored.
	if _, found := l[key]; !found && len(l) >= maxDenied {
		return l
	}
	m := l[key]
	m.Key, m.Denied, m.Last, m.Ticket, m.TicketEnds = key, true, now, nil, time.Time{}
	l[key] = m
	return l
}

// current returns a copy of the list without expired entries. An approved machine stays until its
// ticket expires.
func (l List) current(now time.Time) List {
	out := List{}
	for key, m := range l {
		switch {
		case m.Denied && now.Sub(m.Last) >= denialTTL, !m.Denied && now.Sub(m.Last) >= expireAfter && !now.Before(m.TicketEnds):
			continue
		case len(m.Ticket) > 0 && !now.Before(m.TicketEnds):
			m.Ticket, m.TicketEnds = nil, time.Time{} // the request is pending again
		}
		out[key] = m
	}
	return out
}
