package membership

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// ledgerID returns the ID of the ledger of machine n; fingerprint returns the fingerprint of key n.
func ledgerID(n int) string    { return fmt.Sprintf("%032x", n) }
func fingerprint(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// decision is the state before a request. It contains the ledger of machine 0, which is one of
// three control-plane machines. Machine 0 has synced with the two others, and its ledger contains
// ticket 1a for machine w.
type decision struct {
	ledger  trust.Ledger
	facts   facts
	request request
	want    func(outcome) bool // returns true if the outcome is correct; nil for no such check
}

// ticketFor returns a ticket with three voters.
func ticketFor(serial, name string) trust.Ticket {
	return trust.Ticket{Serial: serial, Name: name, At: noon, Expires: noon.Add(time.Hour), Voters: []string{ledgerID(0), ledgerID(1), ledgerID(2)}, Quorum: 2}
}

// memberOf returns the machine with this name and key that presents a ticket.
func memberOf(ticket, name string, key int) trust.Member {
	return trust.Member{Name: name, Ticket: ticket, Key: fingerprint(key), Address: fmt.Sprint("10.0.0.", 20+key), Renewed: noon}
}

// approvalOf returns the approval of a key with a serial number, by a rule for a single machine.
func approvalOf(serial, key int) trust.Approval {
	return trust.Approval{Serial: fmt.Sprint("SN-", serial), Key: fingerprint(key), Rule: fmt.Sprintf("%064x", 1), Maximum: 1, Signed: noon.Add(-time.Hour), At: noon}
}

func newDecision() *decision {
	c := config.New("m0", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	session := &trust.Session{}
	for i := range 3 {
		session.MarkSynced(ledgerID(i))
	}
	d := &decision{ledger: trust.Ledger{}.WithID(ledgerID(0)), facts: facts{config: c, addresses: []netip.Addr{netip.MustParseAddr("10.0.0.10")}, session: session, now: noon}}
	d.ledger.Tickets = []trust.Ticket{ticketFor("1a", "w")}
	return d
}

// bind adds the binding of a ticket to a key, as the voter has stored it.
func (d *decision) bind(ticket string, voter, key int) *decision {
	d.ledger.Bindings = append(d.ledger.Bindings, trust.TicketBinding{Ticket: ticket, Voter: ledgerID(voter), Key: fingerprint(key), Address: fmt.Sprint("10.0.0.", 20+key)})
	return d
}

// ask sets the request, and the function that checks its outcome; nil for none.
func (d *decision) ask(r request, want func(outcome) bool) *decision {
	d.request, d.want = r, want
	return d
}

// remove removes the machine with this name, which revokes its tickets.
func (d *decision) remove(name string) *decision {
	d.ledger, _, _ = d.ledger.Remove(name, noon, "CN=admin")
	return d
}

// The method with adds a member.
func (d *decision) with(m trust.Member) *decision {
	m.Joined = noon
	d.ledger.Members = append(d.ledger.Members, m)
	return d
}

// rows has a function for each row of the table in the comment of decide. The key is the request
// and the condition of the row; the function changes a decision so that the row applies.
var rows = map[string]func(*decision) *decision{
	"ticketIssued a member has the name": func(d *decision) *decision {
		return d.with(memberOf("2b", "v", 2)).ask(ticketIssued{ticket: ticketFor("3c", "v")}, nil)
	},
	"ticketIssued 1,000 tickets are open": func(d *decision) *decision {
		for n := range 999 {
			d.ledger.Tickets = append(d.ledger.Tickets, ticketFor(fmt.Sprintf("f%x", n), "v"))
		}
		return d.ask(ticketIssued{ticket: ticketFor("3c", "v")}, nil)
	},
	"ticketIssued half of the voters would be a quorum": func(d *decision) *decision {
		t := ticketFor("3c", "v")
		t.Voters, t.Quorum = []string{ledgerID(1)}, 1
		return d.ask(ticketIssued{ticket: t, votes: true}, nil)
	},
	"ticketIssued otherwise": func(d *decision) *decision {
		t := ticketFor("3c", "v")
		t.Voters = []string{ledgerID(1), ledgerID(2)}
		return d.ask(ticketIssued{ticket: t, votes: true}, func(o outcome) bool {
			return slices.Contains(o.ledger.PublicForTicket("3c").Tickets[0].Voters, ledgerID(0)) && len(t.Voters) == 2
		})
	},
	"presented the source address is not its own": func(d *decision) *decision {
		m := memberOf("1a", "w", 1)
		m.Address = "10.0.0.10"
		return d.ask(presented{m, false}, nil)
	},
	"presented the ticket was revoked": func(d *decision) *decision {
		return d.remove("w").ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented another key has joined with the ticket": func(d *decision) *decision {
		d.ledger.Tickets = nil
		return d.with(memberOf("1a", "w", 1)).ask(presented{memberOf("1a", "w", 2), false}, nil)
	},
	"presented another member has the address": func(d *decision) *decision {
		v := memberOf("2b", "v", 2)
		v.Address = memberOf("1a", "w", 1).Address
		return d.with(v).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented another member has the name": func(d *decision) *decision {
		return d.with(memberOf("2b", "w", 2)).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented a machine with this vote has the address": func(d *decision) *decision {
		d.ledger.Tickets = append(d.ledger.Tickets, ticketFor("2b", "v"))
		m := memberOf("1a", "w", 1)
		m.Address = memberOf("2b", "v", 2).Address
		return d.bind("2b", 0, 2).ask(presented{m, false}, nil)
	},
	"presented a machine with this vote has the name": func(d *decision) *decision {
		d.ledger.Tickets = append(d.ledger.Tickets, ticketFor("2b", "w"))
		return d.bind("2b", 0, 2).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented the machine is a member": func(d *decision) *decision {
		d.ledger.Tickets = nil
		m := memberOf("1a", "w", 1)
		m.Address = "10.0.0.99"
		return d.with(memberOf("1a", "w", 1)).ask(presented{m, true}, func(o outcome) bool { return o.ledger.Members[0].Address == "10.0.0.99" })
	},
	"presented a certificate of a member that is unknown": func(d *decision) *decision {
		d.ledger.Tickets = nil
		return d.ask(presented{memberOf("1a", "w", 1), true}, func(o outcome) bool { return len(o.ledger.Members)+len(o.ledger.Bindings) == 0 })
	},
	"presented the ticket is unknown": func(d *decision) *decision {
		return d.ask(presented{memberOf("9f", "w", 1), false}, nil)
	},
	"presented the ticket is for another name": func(d *decision) *decision {
		return d.ask(presented{memberOf("1a", "v", 1), false}, nil)
	},
	"presented the ticket has expired": func(d *decision) *decision {
		d.facts.now = noon.Add(time.Hour)
		return d.ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented another key is bound, and either can win": func(d *decision) *decision {
		return d.bind("1a", 1, 2).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented another key is bound, and only it can win": func(d *decision) *decision {
		d.ledger.Tickets[0].Quorum = 3
		return d.bind("1a", 1, 2).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented another key is bound by a quorum": func(d *decision) *decision {
		return d.bind("1a", 1, 2).bind("1a", 2, 2).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented the bindings are divided: no key can win": func(d *decision) *decision {
		return d.bind("1a", 0, 1).bind("1a", 1, 2).bind("1a", 2, 3).ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented this ledger is no voter of the ticket": func(d *decision) *decision {
		d.ledger.ID = ledgerID(9)
		return d.ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented a voter was not polled since the last start": func(d *decision) *decision {
		d.facts.session = &trust.Session{}
		d.facts.session.MarkSynced(ledgerID(1))
		return d.ask(presented{memberOf("1a", "w", 1), false}, nil)
	},
	"presented otherwise": func(d *decision) *decision {
		return d.ask(presented{memberOf("1a", "w", 1), false}, func(o outcome) bool {
			return len(o.ledger.Bindings) == 1 && o.ledger.Bindings[0] == trust.TicketBinding{Ticket: "1a", Voter: ledgerID(0), Key: fingerprint(1), Address: "10.0.0.21"}
		})
	},
	"voteRequested the received membership is invalid": func(d *decision) *decision {
		return d.ask(voteRequested{memberOf("1a", "w", 1), false, trust.Membership{Tickets: []trust.Ticket{{Serial: "0x"}}}}, nil)
	},
	"voteRequested the source address is not its own": func(d *decision) *decision {
		m := memberOf("1a", "w", 1)
		m.Address = "127.0.0.1"
		return d.ask(voteRequested{member: m}, nil)
	},
	"voteRequested the control plane has the name": func(d *decision) *decision {
		return d.ask(voteRequested{member: memberOf("1a", "m0", 1)}, nil)
	},
	"voteRequested another key is bound in the received part": func(d *decision) *decision {
		d.ledger.Tickets[0].Quorum = 3
		received := trust.Membership{Bindings: []trust.TicketBinding{{Ticket: "1a", Voter: ledgerID(1), Key: fingerprint(2)}}}
		return d.ask(voteRequested{memberOf("1a", "w", 1), false, received}, func(o outcome) bool { return len(o.ledger.Bindings) == 1 })
	},
	"voteRequested otherwise": func(d *decision) *decision {
		received := d.ledger.Public()
		d.ledger.Tickets = nil
		return d.ask(voteRequested{memberOf("1a", "w", 1), false, received}, func(o outcome) bool { return len(o.ledger.Tickets) == 1 && len(o.ledger.Bindings) == 1 })
	},
	"counted the ticket was revoked meanwhile": func(d *decision) *decision {
		return d.bind("1a", 0, 1).bind("1a", 1, 1).remove("w").ask(counted{memberOf("1a", "w", 1), false, nil, 2, 2}, nil)
	},
	"counted fewer votes than the quorum": func(d *decision) *decision {
		return d.bind("1a", 0, 1).ask(counted{memberOf("1a", "w", 1), false, nil, 3, 1}, nil)
	},
	"counted another member got the address meanwhile": func(d *decision) *decision {
		v := memberOf("2b", "v", 2)
		v.Address = memberOf("1a", "w", 1).Address
		return d.bind("1a", 0, 1).bind("1a", 1, 1).with(v).ask(counted{memberOf("1a", "w", 1), false, nil, 2, 2}, nil)
	},
	"counted otherwise": func(d *decision) *decision {
		others := []trust.TicketBinding{{Ticket: "1a", Voter: ledgerID(2), Key: fingerprint(1)}}
		return d.bind("1a", 0, 1).ask(counted{memberOf("1a", "w", 1), false, others, 2, 2}, func(o outcome) bool { return len(o.ledger.Members) == 1 && len(o.ledger.Tickets) == 0 })
	},
	"signed the machine was removed meanwhile": func(d *decision) *decision {
		d.ledger.Tickets = nil
		return d.with(memberOf("1a", "w", 1)).remove("w").ask(signed{memberOf("1a", "w", 1)}, nil)
	},
	"signed otherwise": func(d *decision) *decision {
		return d.with(memberOf("1a", "w", 1)).ask(signed{memberOf("1a", "w", 1)}, nil)
	},
	"replicated the control plane has the name of a ticket": func(d *decision) *decision {
		d.ledger.ControlPlanes = map[string]string{"10.0.0.11": "m1"}
		d.facts.config.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.11")}
		return d.ask(replicated{membership: trust.Membership{Tickets: []trust.Ticket{ticketFor("2b", "m1")}}}, nil)
	},
	"replicated an item is invalid": func(d *decision) *decision {
		return d.ask(replicated{from: "m1", revocations: []trust.Revocation{{Lineage: "0x", Generation: 1}}}, nil)
	},
	"replicated a ticket or member that was removed here": func(d *decision) *decision {
		r := replicated{membership: trust.Membership{Tickets: []trust.Ticket{ticketFor("1a", "w"), ticketFor("2b", "v")}}}
		return d.remove("w").ask(r, func(o outcome) bool { return len(o.ledger.Tickets) == 1 && o.ledger.Tickets[0].Name == "v" })
	},
	"replicated a removal": func(d *decision) *decision {
		return d.ask(replicated{revocations: []trust.Revocation{{Lineage: "1a", Generation: 1, At: noon}}}, func(o outcome) bool {
			return len(o.newRevocations) == 1 && len(o.ledger.Tickets) == 0 && o.ledger.Revoked[0].Machine == "w"
		})
	},
	"replicated an approval contradicts an approval here": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		return d.ask(replicated{membership: trust.Membership{Approvals: []trust.Approval{approvalOf(1, 2)}}}, nil)
	},
	"replicated the rule has approved its maximum": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		return d.ask(replicated{membership: trust.Membership{Approvals: []trust.Approval{approvalOf(2, 2)}}}, nil)
	},
	"approved another key has the number, no newer rule": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		return d.ask(approved{approvalOf(1, 2)}, nil)
	},
	"approved otherwise": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		next := approvalOf(1, 2)
		next.Rule, next.Signed, next.At = fmt.Sprintf("%064x", 2), noon.Add(time.Second), noon.Add(time.Minute)
		return d.ask(approved{next}, func(o outcome) bool { return o.ledger.HasApproval(next.ID()) && len(o.ledger.Approvals) == 2 })
	},
	"approved the rule has approved its maximum": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		return d.ask(approved{approvalOf(2, 2)}, nil)
	},
	"approved the approval is in the ledger already": func(d *decision) *decision {
		d.ledger.Approvals = []trust.Approval{approvalOf(1, 1)}
		again := approvalOf(1, 1)
		again.At = again.At.Add(time.Hour)
		return d.ask(approved{again}, func(o outcome) bool { return slices.Equal(o.ledger.Approvals, d.ledger.Approvals) })
	},
	"replicated otherwise": func(d *decision) *decision {
		return d.ask(replicated{membership: trust.Membership{Members: []trust.Member{memberOf("1a", "w", 1)}}}, func(o outcome) bool {
			return len(o.ledger.Members) == 1 && len(o.ledger.Tickets) == 0 && len(o.newRevocations) == 0
		})
	},
	"removed the name is unknown": func(d *decision) *decision {
		return d.ask(removed{name: "v"}, nil)
	},
	"removed the name is unknown, machines are silent": func(d *decision) *decision {
		return d.ask(removed{name: "v", unreached: "10.0.0.12: no answer"}, nil)
	},
	"removed the machine was removed before": func(d *decision) *decision {
		return d.remove("w").ask(removed{name: "w"}, func(o outcome) bool { return slices.Equal(o.tickets, []string{"1a"}) })
	},
	"removed otherwise": func(d *decision) *decision {
		return d.with(memberOf("2b", "w", 2)).ask(removed{name: "w"}, func(o outcome) bool {
			return len(o.tickets) == 2 && len(o.ledger.Members)+len(o.ledger.Tickets) == 0 && len(o.ledger.Revoked) == 2
		})
	},
}

// TestDecide reads the table in the comment of decide. For each row, it calls decide with the
// decision of the function in rows, and checks that the answer is that of the row.
func TestDecide(t *testing.T) {
	source, err := os.ReadFile("decide.go")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`(?m)^//\t(\w+) +(\S.*?)  +(\S.*)$`)
	seen := 0
	for _, m := range row.FindAllStringSubmatch(string(source), -1)[1:] { // without the header
		name, answer := m[1]+" "+m[2], m[3]
		build := rows[name]
		if build == nil {
			t.Errorf("no test for the row %q", name)
			continue
		}
		seen++
		d := build(newDecision())
		before := d.ledger
		out, err := decide(d.ledger, d.request, d.facts)
		reason, no := strings.CutPrefix(answer, "no: ")
		if out.rejection != nil {
			err = out.rejection
		} else if err != nil && (!slices.Equal(out.ledger.Public().Digest(), before.Public().Digest()) || !slices.Equal(out.ledger.Revoked.Digest(), before.Revoked.Digest())) {
			t.Errorf("%s: the request is rejected, but the ledger has changed", name)
		}
		if no != (err != nil) || no && !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: want %q, got %v", name, answer, err)
		}
		if d.want != nil && !d.want(out) {
			t.Errorf("%s: got %+v", name, out)
		}
	}
	if seen != len(rows) {
		t.Errorf("%d rows of the table have a test, but there are %d tests", seen, len(rows))
	}
}
