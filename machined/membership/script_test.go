package membership

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/machined/membership/workerjoin"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). Each machine has its own fixed delay for
// calls, so the order of the answers is fixed. scriptCommands lists the commands.
func TestScripts(t *testing.T) {
	commands := scripttest.Commands[*site]{}
	for name, do := range scriptCommands {
		commands[name] = func(s *site, args []string) string {
			out := do(s, args)
			time.Sleep(callAllTimeout) // until all calls have ended
			s.learnNames()
			return s.readable(out)
		}
	}
	scripttest.Run(t, newSite, commands)
}

// newSite returns a cluster without machines.
func newSite(t *testing.T) *site {
	s := &site{t: t, net: newNetwork(), byName: map[string]*scriptMachine{}, names: map[string]string{}, nodes: map[string]bool{}}
	s.net.delay = func(to netip.Addr) { time.Sleep(time.Duration(to.As4()[3]) * time.Millisecond) }
	s.net.reaches = s.reaches
	return s
}

// site is the cluster of a script.
type site struct {
	t       *testing.T
	net     *network
	cluster *config.Config // the configuration of the first control-plane machine
	planes  []*scriptMachine
	workers []*scriptMachine
	byName  map[string]*scriptMachine
	nodes   map[string]bool   // Node objects of the API server, by name
	names   map[string]string // readable names of serials, fingerprints and ledger IDs
}

// scriptMachine is a machine of a script.
type scriptMachine struct {
	*machine
	name   string
	addr   netip.Addr
	side   string        // the part of the split network; empty if the network is not split
	ahead  time.Duration // the time by which the clock of the machine is ahead
	ticket string        // serial number of a worker's ticket
	loop   workerLoop
	shown  int    // number of events that were printed
	copy   []byte // copy of the ledger, for a rollback of the disk
}

// scriptCommands are the commands of the scripts.
var scriptCommands = scripttest.Commands[*site]{
	"machines": (*site).machines,      // machines a b c: creates and syncs control-plane machines
	"ticket":   (*site).createTicket,  // ticket w1 on a [for 10m]: an operator creates a ticket
	"copy":     (*site).copyWorker,    // copy w1 as t: creates t with the ticket of w1
	"join":     (*site).join,          // join w1 via b: w1 performs its next step, calling only b
	"renew":    (*site).renew,         // renew w1 via b: w1 renews before it has to, calling only b
	"move":     (*site).move,          // move w1 to 10.0.0.40: the address of w1 changes
	"remove":   (*site).remove,        // remove w1 on a: an operator removes a machine
	"revoke":   (*site).revoke,        // revoke dora on a: an operator revokes the name of a user
	"restore":  (*site).restoreName,   // restore dora on a: an operator restores the name of a user
	"ask":      (*site).addNewcomer,   // ask w1: creates a worker that sends join requests
	"pending":  (*site).pending,       // pending on a: prints the pending join requests
	"approve":  (*site).approve,       // approve w1 on a: an operator approves a join request
	"deny":     (*site).deny,          // deny w1 on a: an operator denies a join request
	"rule":     (*site).approveByRule, // rule k1 SN-1 on a [signed again]: a rule approves a key
	"votes":    (*site).votes,         // votes w1: prints the key that each voter has bound
	"ledger":   (*site).ledger,        // ledger a: prints members, tickets and revocations
	"state":    (*site).state,         // state w1: prints whether w1 has joined or is removed
	"events":   (*site).printEvents,   // events a: prints the events of a since the last call
	"cut":      (*site).cut,           // cut c: no machine reaches c, and c reaches no machine
	"split":    (*site).split,         // split a | b c: the network is split into a, and b and c
	"heal":     (*site).heal,          // heal [c]: ends the cut of c, or the split of the network
	"sync":     (*site).sync,          // sync [c]: c polls its peers once, or all machines twice
	"restart":  (*site).restart,       // restart c: machined of c restarts, and reads its disk
	"lose":     (*site).lose,          // lose c: machined of c restarts with an empty disk
	"damage":   (*site).damage,        // damage c: machined of c restarts with an unreadable ledger
	"newlist":  (*site).newList,       // newlist on c: an operator starts a new list of revocations
	"backup":   (*site).backup,        // backup c: copies the ledger of c
	"rollback": (*site).rollBack,      // rollback c: machined of c restarts with the copied ledger
	"clock":    (*site).setClock,      // clock c +2h: the clock of c is ahead by 2 hours
	"wait":     (*site).wait,          // wait 1h: an hour passes
	"node":     (*site).createNode,    // node w1: creates a Node; after node !, deletions fail
	"gc":       (*site).collect,       // gc a: machine a deletes the Nodes of removed machines
	"confirm":  (*site).listsEqual,    // confirm: prints whether all ledgers agree
	"call":     (*site).call,          // call Vote from w1 to a: w1 calls the method Vote of a
	"requests": (*site).allowRequests, // requests: the cluster accepts join requests
}

// approveByRule records the approval of a key by a rule, which approves at most two machines and
// was signed an hour ago. With "signed again", the rule has another ID and was signed now.
func (s *site) approveByRule(args []string) string {
	m := s.find(args[3])
	now := m.deps.Now()
	a := trust.Approval{Serial: args[1], Key: fmt.Sprintf("sha256:%064s", args[0][1:]), Rule: strings.Repeat("a", 64), Maximum: 2, Signed: now.Add(-time.Hour), At: now}
	if len(args) > 4 {
		a.Rule, a.Signed = strings.Repeat("b", 64), now
	}
	s.names[a.Key] = args[0]
	return result(m.Server.RecordApproval(s.t.Context(), a), "stored")
}

// find returns the machine with this name. It fails the test if there is none.
func (s *site) find(name string) *scriptMachine {
	s.t.Helper()
	m := s.byName[name]
	if m == nil {
		s.t.Fatalf("no machine %q", name)
	}
	return m
}

// result returns the output of a command: the text ok, or the code and the message of an error.
func result(err error, ok string) string {
	if err == nil {
		return ok
	}
	if st, is := status.FromError(err); is {
		return fmt.Sprintf("%s: %s", st.Code(), st.Message())
	}
	return "error: " + err.Error()
}

// reaches returns true if the machine from reaches the address to.
func (s *site) reaches(from *machine, to netip.Addr) bool {
	var a, b *scriptMachine
	for _, m := range s.byName {
		if m.machine == from {
			a = m
		}
		if m.addr == to {
			b = m
		}
	}
	_, off := s.net.off.Load(a.addr)
	return b != nil && !off && (a.side == b.side || a.side == "" || b.side == "")
}

// add adds a machine.
func (s *site) add(name string, c *config.Config, addr netip.Addr) *scriptMachine {
	m := &scriptMachine{name: name, addr: addr, machine: newMachine(s.t, s.t.TempDir(), c, s.net, addr)}
	m.deps.Now = func() time.Time { return time.Now().Add(m.ahead) }
	m.deleteNodes = s.deleteNodes
	m.begin()
	s.byName[name] = m
	s.names[pki.KeyFingerprint(&m.identity.PublicKey)] = name + "'s key"
	s.names[m.deps.Files.Ledger] = "ledger.json"
	return m
}

// begin starts machined.
func (m *scriptMachine) begin() {
	m.start()
	m.loop = workerLoop{Worker: m.Worker, backoff: minJoinBackoff}
	m.Worker.Load()
	have, _ := m.Worker.State.Get()
	m.loop.certs = have.Certs
	go m.Worker.RunRemoval(m.t.Context())
}

func (s *site) machines(args []string) string {
	s.cluster = clusterConfig(s.t, args[0])
	for i := range args {
		if len(args) > 1 {
			s.cluster.Cluster.Spec.ControlPlanes = append(s.cluster.Cluster.Spec.ControlPlanes, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)}))
		}
	}
	for i, name := range args {
		c := *s.cluster
		c.Machine.Metadata.Name = name
		s.planes = append(s.planes, s.add(name, &c, netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)})))
	}
	return s.sync(nil)
}

// learnNames records readable names for the IDs of the ledgers.
func (s *site) learnNames() {
	for _, m := range s.planes {
		id := m.Ledger.Current().ID
		if id == "" || s.names[id] != "" {
			continue
		}
		name := m.name
		for slices.Contains(slices.Collect(maps.Values(s.names)), name) {
			name += "'" // this ledger replaces a lost ledger
		}
		s.names[id] = name
	}
}

// readable replaces random values in an output.
func (s *site) readable(line string) string {
	var pairs []string
	for _, from := range slices.SortedFunc(maps.Keys(s.names), func(a, b string) int { return len(b) - len(a) }) {
		pairs = append(pairs, from, s.names[from])
	}
	return strings.NewReplacer(pairs...).Replace(line)
}

// operator is the caller of an operator's commands.
func operator() api.Caller { return from(admin, "10.0.0.5:1") }

func (s *site) createTicket(args []string) string {
	name, on := args[0], s.find(scripttest.Word(args, "on"))
	key, request := newRequest(s.t)
	r := &api.CreateTicketRequest{Name: name, Csr: request}
	if ttl := scripttest.Word(args, "for"); ttl != "" {
		r.Ttl = durationpb.New(scripttest.Duration(s.t, ttl))
	}
	answer, err := on.CreateTicket(operator(), r)
	if err != nil {
		return result(err, "")
	}
	s.giveTicket(name, key, answer)
	var stored []string
	for _, m := range s.planes {
		if slices.Contains(answer.ControlPlanes, m.addr.String()) {
			stored = append(stored, m.name)
		}
	}
	return "stored by " + strings.Join(stored, " ")
}

// giveTicket writes a ticket into the configuration of a worker.
func (s *site) giveTicket(name string, key *ecdsa.PrivateKey, answer *api.CreateTicketResponse) {
	c, problems := config.Parse(name, answer.Documents)
	if len(problems) > 0 {
		s.t.Fatal(problems)
	}
	cert, err := x509.ParseCertificate(answer.Certificate)
	if err != nil {
		s.t.Fatal(err)
	}
	leaf := &pki.Leaf{Cert: cert, Key: key}
	pair, err := config.NewCertKey(string(leaf.CertPEM()), string(leaf.KeyPEM()))
	if err != nil {
		s.t.Fatal(err)
	}
	c = c.WithJoin(config.Join{Ticket: pair, From: answer.ControlPlanes})
	m := s.byName[name]
	if m == nil {
		m = s.newWorker(name, c)
	}
	m.config.Set(c)
	s.nameTicket(m, leaf.Cert)
}

// nameTicket records the ticket of a worker.
func (s *site) nameTicket(m *scriptMachine, ticket *x509.Certificate) {
	m.ticket = pki.Serial(ticket)
	name, n := m.name+"'s ticket", 2
	for slices.Contains(slices.Collect(maps.Values(s.names)), name) {
		name = fmt.Sprintf("%s's ticket no. %d", m.name, n)
		n++
	}
	s.names[m.ticket] = name
}

// newWorker adds a worker at the next address.
func (s *site) newWorker(name string, c *config.Config) *scriptMachine {
	m := s.add(name, c, netip.AddrFrom4([4]byte{10, 0, 0, byte(21 + len(s.workers))}))
	s.workers = append(s.workers, m)
	return m
}

func (s *site) copyWorker(args []string) string {
	of := s.find(args[0])
	thief := s.newWorker(scripttest.Word(args, "as"), of.configuration())
	thief.ticket = of.ticket
	return ""
}

// via returns the configuration of a worker that calls only the named machine.
func (s *site) via(w *scriptMachine, args []string) *config.Config {
	c := *w.configuration()
	cluster := *c.Cluster
	cluster.Spec.ControlPlanes = nil
	c.Cluster = &cluster
	join := config.Join{}
	if c.Machine.Spec.Join != nil {
		join = *c.Machine.Spec.Join
	}
	join.From = nil
	for _, name := range strings.Split(scripttest.Word(args, "via"), ",") {
		join.From = append(join.From, s.find(name).addr.String())
	}
	return c.WithJoin(join)
}

func (s *site) join(args []string) string {
	w := s.find(args[0])
	before := w.loop.certs.Machine
	now, _ := w.addresses.Get()
	c := s.via(w, args)
	if w.loop.step(s.t.Context(), c, now) == 0 { // the join request was approved
		w.loop.step(s.t.Context(), c, now)
	}
	return s.outcome(w, before != w.loop.certs.Machine)
}

// outcome returns the output for a step of a worker; changed is true if the worker got
// certificates.
func (s *site) outcome(w *scriptMachine, changed bool) string {
	have, _ := w.Worker.State.Get()
	switch {
	case changed:
		return fmt.Sprintf("%s has certificates for %s", w.name, w.loop.certs.Machine.Cert.IPAddresses[1])
	case have.Problem != "":
		return have.Problem
	}
	return "nothing to do"
}

func (s *site) renew(args []string) string {
	w := s.find(args[0])
	now, _ := w.addresses.Get()
	c := s.via(w, args)
	before := w.loop.certs.Machine
	facts := w.loop.facts(c, now, w.loop.certs)
	w.loop.requestCertificates(s.t.Context(), c, facts, workerjoin.Decision{Action: workerjoin.Renew, Usable: true})
	return s.outcome(w, before != w.loop.certs.Machine)
}

func (s *site) move(args []string) string {
	w := s.find(args[0])
	delete(s.net.machines, w.addr)
	w.addr = netip.MustParseAddr(scripttest.Word(args, "to"))
	s.net.machines[w.addr] = w.machine
	w.addresses.Set(at(w.addr))
	return ""
}

func (s *site) remove(args []string) string {
	answer, err := s.find(scripttest.Word(args, "on")).RemoveMember(operator(), &api.RemoveMemberRequest{Name: args[0]})
	if err != nil {
		return result(err, "")
	}
	out := []string{"revoked " + strings.Join(answer.Tickets, ", ")}
	for _, u := range answer.Unreached {
		out = append(out, "not reached: "+u)
	}
	if answer.NodeError != "" {
		out = append(out, "its Node may exist: "+answer.NodeError)
	}
	return strings.Join(out, "\n")
}

func (s *site) changeName(args []string, restore bool) string {
	m := s.find(scripttest.Word(args, "on"))
	_, _, err := m.Server.Revoke(s.t.Context(), operator(), &api.RevokeRequest{Name: args[0], Restore: restore})
	return result(err, "")
}

func (s *site) revoke(args []string) string      { return s.changeName(args, false) }
func (s *site) restoreName(args []string) string { return s.changeName(args, true) }

func (s *site) newList(args []string) string {
	m := s.find(scripttest.Word(args, "on"))
	_, _, err := m.Server.Revoke(s.t.Context(), operator(), &api.RevokeRequest{Name: "nobody", NewList: true})
	return result(err, "")
}

func (s *site) allowRequests([]string) string {
	for _, m := range s.planes {
		c := *m.configuration()
		cluster := *c.Cluster
		cluster.Spec.JoinRequests = true
		c.Cluster = &cluster
		m.config.Set(&c)
	}
	return ""
}

func (s *site) addNewcomer(args []string) string {
	answer, err := s.planes[0].CreateTicket(operator(), &api.CreateTicketRequest{Name: args[0]})
	if err != nil {
		return result(err, "")
	}
	c, problems := config.Parse(args[0], answer.Documents)
	if len(problems) > 0 {
		s.t.Fatal(problems)
	}
	as := args[0]
	if other := scripttest.Word(args, "as"); other != "" {
		as = other
	}
	s.newWorker(as, c.WithJoin(config.Join{From: answer.ControlPlanes}))
	return ""
}

func (s *site) pending(args []string) string {
	list, err := s.find(scripttest.Word(args, "on")).Requests.ListPending()
	if err != nil {
		return result(err, "")
	}
	var out []string
	for _, m := range list.Machines {
		out = append(out, fmt.Sprintf("%s at %s with %s", m.Name, m.Address, m.Fingerprint))
	}
	return strings.Join(out, "\n")
}

// asked returns the name and the fingerprint in a join request.
func (s *site) asked(args []string) (name, fingerprint string) {
	w := s.find(args[0])
	return w.configuration().Machine.Metadata.Name, pki.KeyFingerprint(&w.identity.PublicKey)
}

func (s *site) approve(args []string) string {
	name, key := s.asked(args)
	on := s.find(scripttest.Word(args, "on"))
	unchanged, err := on.Requests.Approve(s.t.Context(), operator(), &api.ApproveRequest{Name: name, Fingerprint: key})
	if unchanged {
		return "it is approved already"
	}
	if err == nil {
		ticket, err := x509.ParseCertificate(on.Requests.list[key].Ticket)
		if err != nil {
			s.t.Fatal(err)
		}
		s.nameTicket(s.find(args[0]), ticket)
	}
	return result(err, "")
}

func (s *site) deny(args []string) string {
	name, key := s.asked(args)
	answer, err := s.find(scripttest.Word(args, "on")).Requests.Deny(s.t.Context(), &api.DenyRequest{Name: name, Fingerprint: key})
	if err != nil {
		return result(err, "")
	}
	var out []string
	for _, u := range answer.Unreached {
		out = append(out, "not reached: "+u)
	}
	return strings.Join(out, "\n")
}

func (s *site) votes(args []string) string {
	w := s.find(args[0])
	var out []string
	for _, m := range s.planes {
		known := m.Ledger.Current()
		about := known.PublicForTicket(w.ticket)
		vote := "no vote"
		if len(about.Members) > 0 {
			vote = "a member: " + about.Members[0].Key
		}
		for _, b := range about.Bindings {
			if b.Voter == known.ID {
				vote = b.Key
			}
		}
		out = append(out, m.name+": "+vote)
	}
	return strings.Join(out, "\n")
}

func (s *site) ledger(args []string) string {
	return strings.Join(ledgerLines(s.find(args[0]).Ledger.Current()), "\n")
}

// ledgerLines are the lines about a ledger.
func ledgerLines(l trust.Ledger) []string {
	out := []string{"ledger " + cmp.Or(l.ID, "without an ID")}
	for _, m := range l.Members {
		out = append(out, fmt.Sprintf("member %s at %s, generation %d, with %s", m.Name, m.Address, m.Generation, m.Key))
	}
	for _, t := range l.Tickets {
		out = append(out, fmt.Sprintf("%s for %s: quorum %d of %s", t.Serial, t.Name, t.Quorum, strings.Join(t.Voters, " ")))
	}
	for _, b := range l.Bindings {
		out = append(out, fmt.Sprintf("%s is bound to %s by %s", b.Ticket, b.Key, b.Voter))
	}
	for _, r := range l.Revoked {
		what := "revoked"
		if r.Restored {
			what = "restored"
		}
		line := fmt.Sprintf("%s %s%s", what, r.Lineage, r.Name)
		if r.Machine != "" {
			line += " of machine " + r.Machine
		}
		out = append(out, line)
	}
	return out
}

func (s *site) state(args []string) string {
	have, _ := s.find(args[0]).Worker.State.Get()
	out := "not joined"
	switch {
	case have.Removed && have.PodsStopped:
		out = "removed, pods stopped"
	case have.Removed:
		out = "removed"
	case have.Joined:
		out = "joined"
	}
	if have.Problem != "" {
		out += ": " + have.Problem
	}
	return out
}

func (s *site) printEvents(args []string) string {
	m := s.find(args[0])
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, e := range m.events[m.shown:] {
		out = append(out, fmt.Sprintf("%s %s: %s", e.source, e.kind, e.message))
	}
	m.shown = len(m.events)
	return strings.Join(out, "\n")
}

func (s *site) cut(args []string) string {
	for _, name := range args {
		s.net.off.Store(s.find(name).addr, true)
	}
	return ""
}

func (s *site) split(args []string) string {
	side := 0
	for _, name := range args {
		if name == "|" {
			side++
			continue
		}
		s.find(name).side = fmt.Sprint("side ", side)
	}
	return ""
}

func (s *site) heal(args []string) string {
	for _, name := range args {
		s.net.off.Delete(s.find(name).addr)
	}
	if len(args) == 0 {
		for _, m := range s.byName {
			m.side = ""
		}
	}
	return ""
}

func (s *site) sync(args []string) string {
	if len(args) > 0 {
		for _, name := range args {
			m := s.find(name)
			m.Sync.pollPeers(s.t.Context(), m.configuration())
		}
		return ""
	}
	for range 2 {
		for _, m := range s.planes {
			if _, off := s.net.off.Load(m.addr); !off {
				m.Sync.pollPeers(s.t.Context(), m.configuration())
			}
		}
	}
	return ""
}

func (s *site) restart(args []string) string {
	for _, name := range args {
		s.find(name).begin()
	}
	return ""
}

// replaceLedger replaces the ledger on the disk of a machine (nil: removes it), and restarts
// machined.
func (s *site) replaceLedger(m *scriptMachine, text []byte) string {
	err := os.Remove(m.deps.Files.Ledger)
	if text != nil {
		err = os.WriteFile(m.deps.Files.Ledger, text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	m.begin()
	return ""
}

func (s *site) lose(args []string) string { return s.replaceLedger(s.find(args[0]), nil) }

func (s *site) damage(args []string) string {
	return s.replaceLedger(s.find(args[0]), []byte("{torn"))
}

func (s *site) backup(args []string) (out string) {
	m := s.find(args[0])
	var err error
	if m.copy, err = os.ReadFile(m.deps.Files.Ledger); err != nil {
		s.t.Fatal(err)
	}
	return ""
}

func (s *site) rollBack(args []string) string {
	m := s.find(args[0])
	return s.replaceLedger(m, m.copy)
}

func (s *site) setClock(args []string) string {
	s.find(args[0]).ahead = scripttest.Duration(s.t, args[1])
	return ""
}

func (s *site) wait(args []string) string {
	time.Sleep(scripttest.Duration(s.t, args[0]))
	return ""
}

func (s *site) deleteNodes(_ context.Context, names []string) (found []string, err error) {
	for _, name := range names {
		if s.nodes[name] {
			delete(s.nodes, name)
			found = append(found, name)
		}
	}
	if s.nodes["!"] {
		return nil, errors.New("the API server does not answer")
	}
	return found, nil
}

func (s *site) createNode(args []string) string {
	s.nodes[args[0]] = true
	return ""
}

func (s *site) collect(args []string) string {
	m := s.find(args[0])
	if m.NodeGC.Collect(s.t.Context()) {
		return "no Node of a removed machine"
	}
	return "checked; the next check follows soon"
}

func (s *site) listsEqual([]string) string {
	var out []string
	for _, m := range s.planes {
		if _, off := s.net.off.Load(m.addr); off {
			continue
		}
		// This compares all lines except the first, because each ledger has another ID.
		lines := strings.Join(ledgerLines(m.Ledger.Current())[1:], "\n")
		if len(out) > 0 && lines != out[0] {
			return fmt.Sprintf("%s has another state than %s", m.name, s.planes[0].name)
		}
		out = append(out, lines)
	}
	return fmt.Sprintf("%d ledgers agree", len(out))
}

func (s *site) call(args []string) string {
	caller, to := s.find(scripttest.Word(args, "from")), s.find(scripttest.Word(args, "to"))
	own, err := caller.certificate()
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := s.net.dialer(caller.machine)(s.t.Context(), client.Endpoint{Address: to.addr.String(), CA: MachinePool(to.configuration()), Cert: own})
	if err != nil {
		return result(err, "")
	}
	candidate := &api.Member{Name: "w9", Ticket: "1a", Fingerprint: fingerprint(1), Address: "10.0.0.99"}
	switch args[0] {
	case "GetMembership":
		_, err = conn.Cluster.GetMembership(s.t.Context(), &api.GetMembershipRequest{})
	case "ReplicateMembership":
		_, err = conn.Cluster.ReplicateMembership(s.t.Context(), &api.ReplicateMembershipRequest{})
	case "Vote":
		_, err = conn.Cluster.Vote(s.t.Context(), &api.VoteRequest{Candidate: candidate})
	case "GetRevocations":
		_, err = conn.Trust.GetRevocations(s.t.Context(), &api.GetRevocationsRequest{})
	}
	return result(err, "answered")
}
