// Package workerjoin decides what a worker does to become, and to stay, a machine of its cluster:
// ask for certificates by its ticket, ask again by those that it has, or nothing for now.
//
// The package decides; it calls nobody, keeps no files and looks at no clock. What the control
// plane decides is in package trust.
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

// Facts are what the decision depends on.
type Facts struct {
	Now       time.Time
	Name      string       // of the machine
	Addresses []netip.Addr // of the machine; empty before it has one
	// The authorities of machines and of Kubernetes: the one that issues first, then those that are
	// believed beside it.
	MachineCAs, NodeCAs []*x509.Certificate
	Certificates        Certificates
	Ticket              *x509.Certificate // nil when there is none
	JoinRequestsEnabled bool              // the cluster takes requests of machines without a ticket
}

// Certificates is what the machine has got so far. The zero Held is nothing.
type Certificates struct {
	Machine   *x509.Certificate
	Node      []*x509.Certificate
	Addresses []netip.Addr // of the machine, when it asked for them
}

// Action is what is to be done.
type Action int

// What is to be done: nothing; ask by the ticket; ask by the machine's own certificate; ask for a
// ticket, which an operator decides.
const (
	Idle Action = iota
	Join
	Renew
	RequestTicket
)

// Decision is a decision.
type Decision struct {
	Action Action
	// Usable: with what it has, the machine is one of the cluster now.
	Usable bool
	// Until is when the decision changes by itself, if nothing else does; zero for never.
	Until time.Time
	// Reason says in a sentence what is wrong, for the operator; empty when nothing is.
	Reason error
}

// Next decides.
//
//	what it has     ticket            what it does
//	usable, young   none, or its own  nothing, until two thirds of the life are over
//	usable, young   a newer one       join: the operator has invited it anew
//	usable, old     any               renew; old is also what an authority has signed that issues no more
//	ended           usable            join, and goes on meanwhile
//	ended           ended, none       renew, which the other side refuses unless only the clock here is wrong
//	none            usable            join
//	none            ended, none       ask for one, if it may; else nothing: the operator has to give it a ticket
//
// What has ended goes on being used: it is the others who judge it, by their clocks.
func Next(f Facts) Decision {
	s := Decision{Reason: held(f)}
	s.Usable = s.Reason == nil
	ended := s.Usable && valid(f) != nil
	var noTicket error
	switch {
	case f.Ticket == nil:
		noTicket = errors.New("there is no ticket (Machine.spec.join); `orlopctl nodes add` gives one")
	case !f.Now.Before(f.Ticket.NotAfter):
		noTicket = fmt.Errorf("its ticket ended at %s; `orlopctl nodes add` gives another one", f.Ticket.NotAfter.UTC().Format(time.RFC3339))
	}
	newer := noTicket == nil && f.Certificates.Machine != nil && pki.TicketOf(f.Certificates.Machine) != pki.Serial(f.Ticket)
	switch {
	case len(f.Addresses) == 0:
		s.Reason = errors.New("it has no address yet")
	case s.Usable && newer, ended && noTicket == nil:
		s.Action, s.Reason = Join, valid(f)
	case s.Usable && f.Now.Before(renewAt(f)) && valid(f) == nil && slices.Equal(f.Certificates.Addresses, f.Addresses) && byPresent(f):
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

// held says why what the machine has is not good for the cluster that it is told to be in.
func held(f Facts) error {
	if f.Certificates.Machine == nil {
		return errors.New("this machine has not joined the cluster yet")
	}
	by := func(c *x509.Certificate, cas []*x509.Certificate) error {
		if !pki.SignedBy(c, cas...) {
			return errors.New("what this machine has is of another cluster")
		}
		return nil
	}
	if f.Certificates.Machine.Subject.CommonName != f.Name {
		return fmt.Errorf("what this machine has is of a machine called %s", f.Certificates.Machine.Subject.CommonName)
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

// valid says why what the machine has is not valid now, by its own clock.
func valid(f Facts) error {
	for _, c := range append([]*x509.Certificate{f.Certificates.Machine}, f.Certificates.Node...) {
		switch {
		case !f.Now.Before(c.NotAfter):
			return fmt.Errorf("the certificates of this machine ended at %s, or its clock is wrong", c.NotAfter.UTC().Format(time.RFC3339))
		case f.Now.Before(c.NotBefore):
			return fmt.Errorf("the certificates of this machine begin at %s, or its clock is wrong", c.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// byPresent tells whether all certificates are by the authorities that issue now.
func byPresent(f Facts) bool {
	return pki.SignedBy(f.Certificates.Machine, f.MachineCAs[0]) && !slices.ContainsFunc(f.Certificates.Node, func(c *x509.Certificate) bool { return !pki.SignedBy(c, f.NodeCAs[0]) })
}

// renewAt is when the first of the certificates has lived two thirds of its life.
func renewAt(f Facts) time.Time {
	first := pki.RenewAt(f.Certificates.Machine)
	for _, c := range f.Certificates.Node {
		if at := pki.RenewAt(c); at.Before(first) {
			first = at
		}
	}
	return first
}
