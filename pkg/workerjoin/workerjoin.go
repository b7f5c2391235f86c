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
	Held                Held
	Ticket              *x509.Certificate // nil when there is none
	MayAsk              bool              // the cluster takes requests of machines without a ticket
}

// Held is what the machine has got so far. The zero Held is nothing.
type Held struct {
	Machine   *x509.Certificate
	Node      []*x509.Certificate
	Addresses []netip.Addr // of the machine, when it asked for them
}

// Act is what is to be done.
type Act int

// What is to be done: nothing; ask by the ticket; ask by the machine's own certificate; ask for a
// ticket, which an operator decides.
const (
	Rest Act = iota
	Join
	Renew
	Ask
)

// Step is a decision.
type Step struct {
	Act Act
	// Usable: with what it has, the machine is one of the cluster now.
	Usable bool
	// Until is when the decision changes by itself, if nothing else does; zero for never.
	Until time.Time
	// Why says in a sentence what is wrong, for the operator; empty when nothing is.
	Why error
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
func Next(f Facts) Step {
	s := Step{Why: held(f)}
	s.Usable = s.Why == nil
	ended := s.Usable && valid(f) != nil
	var noTicket error
	switch {
	case f.Ticket == nil:
		noTicket = errors.New("there is no ticket (Machine.spec.join); `orlopctl nodes add` gives one")
	case !f.Now.Before(f.Ticket.NotAfter):
		noTicket = fmt.Errorf("its ticket ended at %s; `orlopctl nodes add` gives another one", f.Ticket.NotAfter.UTC().Format(time.RFC3339))
	}
	newer := noTicket == nil && f.Held.Machine != nil && pki.TicketOf(f.Held.Machine) != pki.Serial(f.Ticket)
	switch {
	case len(f.Addresses) == 0:
		s.Why = errors.New("it has no address yet")
	case s.Usable && newer, ended && noTicket == nil:
		s.Act, s.Why = Join, valid(f)
	case s.Usable && f.Now.Before(renewAt(f)) && valid(f) == nil && slices.Equal(f.Held.Addresses, f.Addresses) && byPresent(f):
		s.Until = renewAt(f)
	case s.Usable:
		s.Act, s.Why = Renew, valid(f)
	case noTicket == nil:
		s.Act = Join
	case f.MayAsk:
		s.Act = Ask
	default:
		s.Why = fmt.Errorf("%w, and %w", s.Why, noTicket)
	}
	return s
}

// held says why what the machine has is not good for the cluster that it is told to be in.
func held(f Facts) error {
	if f.Held.Machine == nil {
		return errors.New("this machine has not joined the cluster yet")
	}
	by := func(c *x509.Certificate, cas []*x509.Certificate) error {
		if !pki.SignedBy(c, cas...) {
			return errors.New("what this machine has is of another cluster")
		}
		return nil
	}
	if f.Held.Machine.Subject.CommonName != f.Name {
		return fmt.Errorf("what this machine has is of a machine called %s", f.Held.Machine.Subject.CommonName)
	}
	problems := []error{by(f.Held.Machine, f.MachineCAs)}
	for _, c := range f.Held.Node {
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
	for _, c := range append([]*x509.Certificate{f.Held.Machine}, f.Held.Node...) {
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
	return pki.SignedBy(f.Held.Machine, f.MachineCAs[0]) && !slices.ContainsFunc(f.Held.Node, func(c *x509.Certificate) bool { return !pki.SignedBy(c, f.NodeCAs[0]) })
}

// renewAt is when the first of the certificates has lived two thirds of its life.
func renewAt(f Facts) time.Time {
	first := pki.RenewAt(f.Held.Machine)
	for _, c := range f.Held.Node {
		if at := pki.RenewAt(c); at.Before(first) {
			first = at
		}
	}
	return first
}
