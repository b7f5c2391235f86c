package trust

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). Serial numbers are short, and a key is
// named by a number. Tickets and certificates are valid for an hour. The voters of a ticket are the
// machines after `by`; without `by`, they are all machines after `on`.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *ledgers { return &ledgers{t: t, all: map[string]*holder{}} }, scripttest.Commands[*ledgers]{
		"machines": (*ledgers).machines,  // machines a b c: create machines that have synced
		"ticket":   (*ledgers).addTicket, // ticket 1a for w on a b [by a b c]: a and b store 1a
		"vote":     (*ledgers).vote,      // vote a for w 1a key 1 at 10.0.0.21 [known]: a votes
		"admit":    (*ledgers).admit,     // admit a w 1a key 1 at 10.0.0.21 [known votes 2 of 3]
		"merge":    (*ledgers).merge,     // merge a from b c: a syncs with b and c
		"remove":   (*ledgers).remove,    // remove w on a: an operator removes w by a call to a
		"removed":  (*ledgers).removed,   // removed a [since 1h]: show the removed machines
		"issue":    (*ledgers).issue,     // issue 2b [lineage 2a] for dora on a: a issues 2b
		"issued":   (*ledgers).issued,    // issued a: show the certificates in the ledger of a
		"revoke":   (*ledgers).revoke,    // revoke dora|2b on a: revoke a name or a certificate
		"restore":  (*ledgers).restore,   // restore dora on a: restore a name
		"start":    (*ledgers).start,     // start a: restart machined on a with the stored ledger
		"lose":     (*ledgers).lose,      // lose a: restart machined on a with an empty ledger
		"backup":   (*ledgers).backup,    // backup a: copy the ledger of a
		"rollback": (*ledgers).rollBack,  // rollback a: restart machined on a with the copy
		"prune":    (*ledgers).prune,     // prune a: drop long-expired tickets
		"clock":    (*ledgers).setClock,  // clock a +24h: set the clock of a ahead
		"wait":     (*ledgers).wait,      // wait 1h: let time pass
		"ledger":   (*ledgers).show,      // ledger a: show the ledger of a without certificates
		"equal":    (*ledgers).equal,     // equal a b: compare the ledgers of a and b
	})
}

// ledgers are the control-plane machines of a script.
type ledgers struct {
	t     *testing.T
	names []string
	all   map[string]*holder
	ids   int
}

// holder is a machine with a ledger.
type holder struct {
	Ledger
	session *Session
	ahead   time.Duration // the clock of the machine is ahead by this time
	copy    Ledger        // set by backup
}

// find returns the machine with this name.
func (w *ledgers) find(name string) *holder {
	w.t.Helper()
	h := w.all[name]
	if h == nil {
		w.t.Fatalf("no machine %q", name)
	}
	return h
}

// now returns the time on the clock of a machine. Scripts begin at noon.
func (h *holder) now() time.Time { return noon.Add(sinceStart() + h.ahead) }

// sinceStart returns the virtual time since the start of a script.
func sinceStart() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

// The method on returns the machines after the word `on`, up to the word `by`.
func (w *ledgers) on(args []string) []*holder {
	var out []*holder
	for _, name := range scripttest.Words(args, "on", "by") {
		out = append(out, w.find(name))
	}
	return out
}

func (w *ledgers) machines(args []string) string {
	for _, name := range args {
		w.names = append(w.names, name)
		w.all[name] = &holder{Ledger: w.newLedger(), session: &Session{}}
	}
	for _, h := range w.all {
		for _, o := range w.all {
			h.session.MarkSynced(o.ID)
		}
	}
	return ""
}

// newLedger returns an empty ledger.
func (w *ledgers) newLedger() Ledger {
	w.ids++
	return Ledger{}.WithID(id(w.ids))
}

// readable replaces the IDs of ledgers by the names of their machines, and the fingerprints of keys
// by their numbers.
func (w *ledgers) readable(text string) string {
	var pairs []string
	for name, h := range w.all {
		pairs = append(pairs, h.ID, name)
	}
	for n := range w.ids {
		pairs = append(pairs, id(n+1), "a lost ledger")
	}
	for key := range 10 {
		pairs = append(pairs, finger(key), fmt.Sprint("key ", key))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// result stores the ledger next in the machine if err is nil. It returns the output of the command:
// the error, or an empty text.
func (w *ledgers) result(h *holder, next Ledger, err error) string {
	if err != nil {
		return w.readable(err.Error())
	}
	h.Ledger = next
	return ""
}

func (w *ledgers) addTicket(args []string) string {
	on := w.on(args)
	ticket := Ticket{Serial: args[0], Name: scripttest.Word(args, "for"), At: on[0].now(), Expires: on[0].now().Add(time.Hour), By: "admin"}
	voters := scripttest.Words(args, "by")
	if voters == nil {
		voters = scripttest.Words(args, "on")
	}
	for _, name := range voters {
		ticket.Voters = append(ticket.Voters, w.find(name).ID)
	}
	ticket.Quorum = Majority(len(ticket.Voters))
	var out []string
	for _, h := range on {
		next, err := h.AddTicket(ticket)
		out = append(out, w.result(h, next, err))
	}
	return strings.Join(out, "\n")
}

// candidate parses `w 1a key 1 at 10.0.0.21 [known]`. The result known is true if the machine has a
// certificate.
func (w *ledgers) candidate(args []string, now time.Time) (m Member, known bool) {
	key, err := strconv.Atoi(scripttest.Word(args, "key"))
	if err != nil {
		w.t.Fatal(err)
	}
	return Member{Name: args[0], Ticket: args[1], Key: finger(key), Address: scripttest.Word(args, "at"), Renewed: now}, slices.Contains(args, "known")
}

func (w *ledgers) vote(args []string) string {
	h := w.find(args[0])
	m, known := w.candidate(scripttest.Words(args, "for"), h.now())
	next, err := h.Vote(m, known, h.session, h.now())
	return cmp.Or(w.result(h, next, err), args[0]+" votes yes")
}

func (w *ledgers) admit(args []string) string {
	h := w.find(args[0])
	m, known := w.candidate(args[1:], h.now())
	votes, quorum := 0, 0
	if v := scripttest.Words(args, "votes"); v != nil {
		if _, err := fmt.Sscanf(v[0]+" "+v[2], "%d %d", &votes, &quorum); err != nil {
			w.t.Fatal(err)
		}
	}
	next, err := h.Admit(m, known, votes, quorum)
	if errors.Is(err, ErrNoQuorum) {
		return err.Error() + " (retry)"
	}
	return cmp.Or(w.result(h, next, err), args[1]+" is a member")
}

func (w *ledgers) merge(args []string) string {
	h := w.find(args[0])
	var out []string
	for _, name := range scripttest.Words(args, "from") {
		from := w.find(name)
		next, added, err := h.MergeRevocations(from.Revoked, h.now())
		if err != nil {
			return w.readable(err.Error())
		}
		next, changed, err := next.MergeMembership(from.Public(), h.session, h.now())
		if err != nil {
			return w.readable(err.Error())
		}
		h.Ledger = next
		h.session.MarkSynced(from.ID)
		if len(added) == 0 && !changed {
			out = append(out, args[0]+": nothing new from "+name)
		}
	}
	return strings.Join(out, "\n")
}

func (w *ledgers) remove(args []string) string {
	h := w.on(args)[0]
	next, tickets, err := h.Remove(args[0], h.now(), "admin")
	return cmp.Or(w.result(h, next, err), "revoked "+strings.Join(tickets, " "))
}

func (w *ledgers) removed(args []string) string {
	h := w.find(args[0])
	var since time.Time
	if d := scripttest.Word(args, "since"); d != "" {
		since = h.now().Add(-scripttest.Duration(w.t, d))
	}
	var out []string
	for _, r := range h.RemovedSince(since, h.now()) {
		out = append(out, r.Name+" with ticket "+r.Ticket)
	}
	return strings.Join(out, "\n")
}

func (w *ledgers) issue(args []string) string {
	i := Issued{Serial: args[0], Lineage: cmp.Or(scripttest.Word(args, "lineage"), args[0]), Name: scripttest.Word(args, "for"), Role: "reader", By: "admin"}
	for _, h := range w.on(args) {
		i.At, i.Expires = h.now(), h.now().Add(time.Hour)
		h.Ledger = h.AddIssued(i)
	}
	return ""
}

func (w *ledgers) issued(args []string) string {
	var out []string
	for _, i := range w.find(args[0]).Issued {
		out = append(out, fmt.Sprintf("%s of lineage %s for %s", i.Serial, i.Lineage, i.Name))
	}
	return strings.Join(out, "\n")
}

// revocation returns the revocation of a name, or of a serial number if text begins with a digit.
func revocation(text string, at time.Time) Revocation {
	if text[0] >= '0' && text[0] <= '9' {
		return Revocation{Lineage: text, At: at, By: "admin"}
	}
	return Revocation{Name: text, At: at, By: "admin"}
}

func (w *ledgers) revoke(args []string) string {
	h := w.on(args)[0]
	next, _, err := h.Revoke(revocation(args[0], h.now()))
	return w.result(h, next, err)
}

func (w *ledgers) restore(args []string) string {
	h := w.on(args)[0]
	next, err := h.Restore(revocation(args[0], h.now()))
	return w.result(h, next, err)
}

func (w *ledgers) start(args []string) string {
	w.find(args[0]).session = &Session{}
	return ""
}

func (w *ledgers) lose(args []string) string {
	w.find(args[0]).Ledger = w.newLedger()
	return w.start(args)
}

func (w *ledgers) backup(args []string) string {
	h := w.find(args[0])
	h.copy = h.Ledger
	return ""
}

func (w *ledgers) rollBack(args []string) string {
	h := w.find(args[0])
	h.Ledger = h.copy
	return w.start(args)
}

func (w *ledgers) prune(args []string) string {
	h := w.find(args[0])
	next, some := h.Prune(h.session, h.now())
	h.Ledger = next
	if !some {
		return "nothing to drop"
	}
	return ""
}

func (w *ledgers) setClock(args []string) string {
	w.find(args[0]).ahead = scripttest.Duration(w.t, args[1])
	return ""
}

func (w *ledgers) wait(args []string) string {
	time.Sleep(scripttest.Duration(w.t, args[0]))
	return ""
}

func (w *ledgers) show(args []string) string {
	return w.readable(strings.Join(w.find(args[0]).lines(), "\n"))
}

// lines describes the content of a ledger.
func (l Ledger) lines() []string {
	var out []string
	clock := func(at time.Time) string { return at.UTC().Format("15:04") }
	for _, m := range l.Members {
		out = append(out, fmt.Sprintf("member %s at %s with %s by ticket %s, joined %s, generation %d", m.Name, m.Address, m.Key, m.Ticket, clock(m.Joined), m.Generation))
	}
	for _, t := range l.Tickets {
		out = append(out, fmt.Sprintf("ticket %s for %s until %s, quorum %d of %s", t.Serial, t.Name, clock(t.Expires), t.Quorum, strings.Join(t.Voters, " ")))
	}
	for _, b := range l.Bindings {
		line := fmt.Sprintf("ticket %s is bound to %s by %s", b.Ticket, b.Key, b.Voter)
		if b.Address != "" {
			line += ", last call from " + b.Address
		}
		out = append(out, line)
	}
	for _, r := range l.Revoked {
		state := "revoked"
		if r.Restored {
			state = "restored"
		}
		line := fmt.Sprintf("%s %s at %s, generation %d", state, r, clock(r.At), r.Generation)
		if r.Machine != "" {
			line += ", of machine " + r.Machine
		}
		out = append(out, line)
	}
	return out
}

func (w *ledgers) equal(args []string) string {
	first := w.find(args[0])
	for _, name := range args[1:] {
		h := w.find(name)
		if !slices.Equal(h.Digest(), first.Digest()) || !slices.Equal(h.Public().Digest(), first.Public().Digest()) {
			return name + " differs from " + args[0]
		}
	}
	return "equal"
}
