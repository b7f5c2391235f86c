// Package workerjoin decides the next step of a worker to join its cluster and to stay a member:
// join with its ticket, renew its certificates, request a ticket, or wait.
//
// The package only makes decisions. It makes no calls, stores no files and reads no clock. Package
// trust makes the decisions of the control plane.
package workerjoin

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Facts is the input of the decision.
type Facts struct {
	Now       time.Time
	Name      string       // of the machine
	Addresses []netip.Addr // of the machine; empty before it has an address
	// The machine CAs and the Kubernetes CAs: first the CA that issues, then the other trusted CAs.
	MachineCAs, NodeCAs []*x509.Certificate
	Certificates        Certificates
	Ticket              *x509.Certificate // nil without a ticket
	JoinRequestsEnabled bool              // the cluster accepts join requests
}

// Certificates holds the certificates that the machine has received. The zero value holds none.
type Certificates struct {
	Machine   *x509.Certificate
	Node      []*x509.Certificate
	Addresses []netip.Addr // addresses of the machine when it requested them
}

// Action is the next step of the worker.
type Action int

// Actions: do nothing; join with the ticket; renew with the machine's own certificate; request a
// ticket, which an operator approves or denies.
const (
	Idle Action = iota
	Join
	Renew
	RequestTicket
)

// Decision is the result of Next.
type Decision struct {
	Action Action
	// Usable reports whether the machine is a member with its present certificates.
	Usable bool
	// Until is the time of the next decision if no fact changes before; zero for never.
	Until time.Time
	// Reason describes the problem in a sentence for the operator; nil without a problem.
	Reason error
}

// Next decides the next step from the machine's certificates and its ticket.
//
//	certificates    ticket            decision
//	usable          another, usable   join: the operator has created a new ticket
//	usable, young   none, or its own  nothing, until two thirds of the validity have passed
//	usable, old     none, or its own  renew
//	expired         usable            join, and use the old certificates meanwhile
//	expired         expired, or none  renew (succeeds only if the clock of this machine is wrong)
//	none            usable            join
//	none            expired, or none  request a ticket if the cluster accepts requests; else
//	                                  nothing: an operator has to create a ticket
//
// Certificates become old when two thirds of their validity have passed. They are also old if the
// addresses of the machine have changed, or if a CA that no longer issues has signed them. The
// worker continues to use expired certificates, because the peers check them by their own clocks.
func Next(f Facts) Decision {
	s := Decision{Reason: certificatesFit(f)}
	s.Usable = s.Reason == nil
	ended := s.Usable && valid(f) != nil
	var noTicket error
	switch {
	case f.Ticket == nil:
		noTicket = errors.New("there is no ticket (Machine.spec.join); `orlopctl nodes add` creates one")
	case !f.Now.Before(f.Ticket.NotAfter):
		noTicket = fmt.Errorf("its ticket expired at %s; `orlopctl nodes add` creates another one", f.Ticket.NotAfter.UTC().Format(time.RFC3339))
	}
	newer := noTicket == nil && f.Certificates.Machine != nil && pki.TicketOf(f.Certificates.Machine) != pki.Serial(f.Ticket)
	switch {
	case len(f.Addresses) == 0:
		s.Reason = errors.New("it has no address yet")
	case s.Usable && newer, ended && noTicket == nil:
		s.Action, s.Reason = Join, valid(f)
	case s.Usable && f.Now.Before(renewAt(f)) && valid(f) == nil && slices.Equal(f.Certificates.Addresses, f.Addresses) && bySigningCA(f):
		s.Until = renewAt(f)
	case s.Usable:
		s.Action, s.Reason = Renew, valid(f)
	case noTicket == nil:
		s.Action = Join
	case f.JoinRequestsEnabled:
		s.Action = RequestTicket
	default:
		s.Reason = fmt.Errorf("%w, and %w", s.Reason, noTicket)
	}
	return s
}

// signedBy is a variable because the simulation replaces it by a function that caches the results.
// The simulation checks each certificate many times, and each check takes longer than a decision.
var signedBy = pki.SignedBy

// certificatesFit returns why the certificates of the machine do not fit its configured cluster, or
// nil.
func certificatesFit(f Facts) error {
	if f.Certificates.Machine == nil {
		return errors.New("this machine has not joined the cluster yet")
	}
	by := func(c *x509.Certificate, cas []*x509.Certificate) error {
		if !signedBy(c, cas...) {
			return errors.New("the certificates of this machine are of another cluster")
		}
		return nil
	}
	if f.Certificates.Machine.Subject.CommonName != f.Name {
		return fmt.Errorf("the certificates of this machine are of a machine called %s", f.Certificates.Machine.Subject.CommonName)
	}
	problems := []error{by(f.Certificates.Machine, f.MachineCAs)}
	for _, c := range f.Certificates.Node {
		problems = append(problems, by(c, f.NodeCAs))
	}
	i := slices.IndexFunc(problems, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return problems[i]
}

// valid returns why the certificates are not valid now by the machine's own clock, or nil.
func valid(f Facts) error {
	for _, c := range append([]*x509.Certificate{f.Certificates.Machine}, f.Certificates.Node...) {
		switch {
		case !f.Now.Before(c.NotAfter):
			return fmt.Errorf("the certificates of this machine expired at %s, or its clock is wrong", c.NotAfter.UTC().Format(time.RFC3339))
		case f.Now.Before(c.NotBefore):
			return fmt.Errorf("the certificates of this machine begin at %s, or its clock is wrong", c.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// bySigningCA reports whether the CAs that issue at present have signed all certificates.
func bySigningCA(f Facts) bool {
	return signedBy(f.Certificates.Machine, f.MachineCAs[0]) && !slices.ContainsFunc(f.Certificates.Node, func(c *x509.Certificate) bool { return !signedBy(c, f.NodeCAs[0]) })
}

// renewAt returns the first time at which a certificate has passed two thirds of its validity
// period.
func renewAt(f Facts) time.Time {
	first := pki.RenewAt(f.Certificates.Machine)
	for _, c := range f.Certificates.Node {
		if at := pki.RenewAt(c); at.Before(first) {
			first = at
		}
	}
	return first
}
