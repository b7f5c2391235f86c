package membership

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

// request is an input of decide.
type request interface{ request() }

type (
	// ticketIssued: this machine issues a ticket. votes is true if this machine is a voter.
	ticketIssued struct {
		ticket trust.Ticket
		votes  bool
	}
	// presented: a machine calls this machine, and presents its ticket or its certificate.
	presented struct {
		member         trust.Member
		hasCertificate bool
	}
	// voteRequested: a machine has called another control-plane machine, which requests the vote
	// for the calling machine. membership is the knowledge of the other control-plane machine about
	// the ticket.
	voteRequested struct {
		member         trust.Member
		hasCertificate bool
		membership     trust.Membership
	}
	// counted: this machine has collected the votes for a machine that called it.
	counted struct {
		member         trust.Member
		hasCertificate bool
		bindings       []trust.TicketBinding // from the other voters
		votes, quorum  int
	}
	// signed: more than half of the ledgers contain the machine, and its certificates are signed.
	signed struct{ member trust.Member }
	// replicated: another control-plane machine sends its changes.
	replicated struct {
		from        string // name of that machine
		membership  trust.Membership
		revocations []trust.Revocation
	}
	// approved: a rule of an operator approves a machine that waits for a configuration.
	approved struct{ approval trust.Approval }
	// removed: an operator removes a machine. unreached are the errors of the control-plane
	// machines that did not answer and may know the machine.
	removed struct {
		name, by  string
		unreached string
	}
)

func (ticketIssued) request()  {}
func (presented) request()     {}
func (voteRequested) request() {}
func (counted) request()       {}
func (signed) request()        {}
func (replicated) request()    {}
func (approved) request()      {}
func (removed) request()       {}

// facts are the facts about this machine on which a decision depends, besides its ledger.
type facts struct {
	config    *config.Config // of a control-plane machine
	addresses []netip.Addr   // all addresses of this machine
	session   *trust.Session // ledgers with which machined has synced since its last start
	now       time.Time
}

// outcome is the output of decide. The caller stores the ledger, then enforces the new revocations,
// then answers.
type outcome struct {
	ledger         trust.Ledger
	rejection      error              // why the requested vote is rejected; ledger is still valid
	newRevocations []trust.Revocation // revocations that this machine did not know
	tickets        []string           // tickets that a removal revokes
}

// decide returns the answer of a control-plane machine to a request. The first row that applies is
// the answer. The text after "no:" is a part of the error. "No newer rule" means that the rule was
// not signed after the approval of the other key; a number is a serial number or a UUID. TestDecide
// reads these rows.
//
//	request        condition                                    answer
//	ticketIssued   a member has the name                        no: a member has this name
//	ticketIssued   1,000 tickets are open                       no: there are 1000 open tickets
//	ticketIssued   half of the voters would be a quorum         no: 1 of 2 voters
//	ticketIssued   otherwise                                    stored
//	presented      the source address is not its own            no: which is the address of
//	presented      the ticket was revoked                       no: it was revoked
//	presented      another key has joined with the ticket       no: another machine has used it
//	presented      another member has the address               no: another member has the address
//	presented      another member has the name                  no: a member has this name
//	presented      a machine with this vote has the address     no: a machine with a ticket for
//	presented      a machine with this vote has the name        no: another ticket for this name
//	presented      the machine is a member                      yes, its address is stored
//	presented      a certificate of a member that is unknown    yes, nothing is stored
//	presented      the ticket is unknown                        no: does not know it
//	presented      the ticket is for another name               no: does not know it
//	presented      the ticket has expired                       no: it expired at
//	presented      another key is bound, and either can win     no: also presented it
//	presented      another key is bound, and only it can win    no: has presented it before
//	presented      another key is bound by a quorum             no: another machine has used it
//	presented      the bindings are divided: no key can win     no: it is spent
//	presented      this ledger is no voter of the ticket        no: is not a voter of the ticket
//	presented      a voter was not polled since the last start  no: has not synced with all
//	presented      otherwise                                    yes, the key has the binding
//	voteRequested  the received membership is invalid           no: cannot use received membership
//	voteRequested  the source address is not its own            no: which is the address of
//	voteRequested  the control plane has the name               no: control plane has this name
//	voteRequested  another key is bound in the received part    no: has presented it before
//	voteRequested  otherwise                                    as presented, after the merge
//	counted        the ticket was revoked meanwhile             no: it was revoked
//	counted        fewer votes than the quorum                  no: no quorum
//	counted        another member got the address meanwhile     no: another member has the address
//	counted        otherwise                                    a member
//	signed         the machine was removed meanwhile            no: it was removed while it joined
//	signed         otherwise                                    certificates
//	replicated     the control plane has the name of a ticket   no: control plane has this name
//	replicated     an item is invalid                           no: cannot use
//	replicated     an approval contradicts an approval here     no: another machine
//	replicated     the rule has approved its maximum            no: its maximum of 1 machines
//	replicated     a ticket or member that was removed here     merged without it
//	replicated     a removal                                    merged, and enforced
//	replicated     otherwise                                    merged
//	approved       another key has the number, no newer rule    no: another machine
//	approved       the approval is in the ledger already        unchanged
//	approved       the rule has approved its maximum            no: its maximum of 1 machines
//	approved       otherwise                                    stored
//	removed        the name is unknown, machines are silent     no: and may know it
//	removed        the name is unknown                          no: it is not a member
//	removed        the machine was removed before               its revoked tickets again
//	removed        otherwise                                    its tickets are revoked
//
// The reason for a "no" is the returned error; the ledger is then unchanged. For voteRequested, the
// reason can also be outcome.rejection; the received membership is then merged. The reason is
// trust.ErrNoQuorum if a later try can succeed. A "yes" is stored before the answer is sent: the
// first key that presents a ticket here has this machine's binding for good.
func decide(l trust.Ledger, r request, f facts) (outcome, error) {
	out := outcome{ledger: l}
	var err error
	switch r := r.(type) {
	case ticketIssued:
		if r.votes {
			r.ticket.Voters = append(r.ticket.Voters[:len(r.ticket.Voters):len(r.ticket.Voters)], l.ID)
		}
		out.ledger, err = l.AddTicket(r.ticket)
	case presented:
		if err = f.checkAddress(r.member); err == nil {
			out.ledger, err = l.Vote(r.member, r.hasCertificate, f.session, f.now)
		}
	case voteRequested:
		out, err = f.voteFor(l, r)
	case counted:
		out.ledger, err = l.AdmitWithVotes(r.member, r.hasCertificate, r.bindings, r.votes, r.quorum, f.session)
	case signed:
		if !l.TicketUsed(r.member.Ticket) {
			err = fmt.Errorf("machine %s: it was removed while it joined; create another ticket", r.member.Name)
		}
	case replicated:
		out, err = f.merge(l, r)
	case approved:
		out.ledger, err = l.AddApproval(r.approval)
	case removed:
		if out.ledger, out.tickets, err = l.Remove(r.name, f.now.UTC(), r.by); err != nil && r.unreached != "" {
			err = fmt.Errorf("%w; some control-plane machines do not answer, and may know it (%s)", err, r.unreached)
		}
	default:
		err = fmt.Errorf("membership: unknown request %T", r)
	}
	if err != nil {
		return outcome{ledger: l}, err
	}
	return out, nil
}

// checkAddress rejects a machine if the source address of its call cannot be its own address.
func (f facts) checkAddress(m trust.Member) error {
	addr, err := netip.ParseAddr(m.Address)
	if err != nil {
		return err
	}
	return checkCallerAddress(f.config, f.addresses, addr)
}

// voteFor merges the knowledge of another control-plane machine about a machine, and votes.
func (f facts) voteFor(l trust.Ledger, r voteRequested) (out outcome, err error) {
	if out.ledger, _, err = l.MergeMembership(r.membership, f.session, f.now); err != nil {
		return out, err
	}
	if out.rejection = f.checkAddress(r.member); out.rejection == nil {
		out.rejection = f.checkName(l, r.member.Name, "cannot join")
	}
	if out.rejection == nil {
		out.ledger, out.rejection = out.ledger.Vote(r.member, r.hasCertificate, f.session, f.now)
	}
	return out, nil
}

// merge merges the changes of another control-plane machine.
func (f facts) merge(l trust.Ledger, r replicated) (outcome, error) {
	for _, t := range r.membership.Tickets {
		if err := f.checkName(l, t.Name, "cannot create ticket"); err != nil {
			return outcome{}, err
		}
	}
	next, added, err := l.MergeRevocations(r.revocations, f.now)
	if err != nil {
		return outcome{}, fmt.Errorf("replicated by %s: %w", r.from, err)
	}
	// A merge by a poll accepts contradictory approvals, so that all ledgers have both. A
	// replicated approval requests the consent of this machine.
	for _, a := range r.membership.Approvals {
		if next, err = next.AddApproval(a); err != nil {
			return outcome{}, err
		}
	}
	next, _, err = next.MergeMembership(r.membership, f.session, f.now)
	return outcome{ledger: next, newRevocations: added}, err
}

// checkName rejects a name that the control plane has.
func (f facts) checkName(l trust.Ledger, name, operation string) error {
	if reservedName(f.config, l, name) {
		return fmt.Errorf("machine %s: %s: the control plane has this name", name, operation)
	}
	return nil
}
