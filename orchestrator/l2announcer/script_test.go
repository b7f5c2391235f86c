package l2announcer

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/orchestrator/neighbor/linktest"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). All nodes step at the same time, packets
// and objects arrive without delay, and each kubelet renews its Lease every 10 s. The command `run`
// prints each change of a node and each packet that a node sends, with the time since the start of
// the command. It does not print the announcements of a node's own address.
//
// The command `hear` simulates a node that listens to a single peer. Its argument has one character
// for each step of the node, 200 ms apart. "!" means that an announcement of the peer arrives, "+"
// another packet of the peer, and "." no packet. "_" means that the node itself stood still for one
// second before the step, and "-" for three seconds. A number before a character repeats the
// character.
//
// The command `claim` simulates that a machine that is not a node announces an address, and that
// only one node hears this. The command `announcer` does not affect the kernel of a node, which
// always answers for the node's own addresses.
//
// The output of `hear` has one letter for each step. "h" means that the peer is heard, "?" that it
// is heard and solicited, and "s" that it is silent. "b" means that the node has just begun to
// listen and relies on the API server. A capital letter means that the node announces its addresses
// again. If the argument has numbers, the output has numbers, too.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *link { return &link{t: t, apiServer: true} }, scripttest.Commands[*link]{
		"hear":      (*link).hear,      // hear TIMELINE
		"nodes":     (*link).addNodes,  // nodes a b c
		"service":   (*link).service,   // service 192.0.2.70 [local a b]
		"run":       (*link).run,       // run 3s
		"wait":      (*link).wait,      // wait 3s: the same as run, but without output
		"owners":    (*link).owners,    // owners: the nodes that answer for each address
		"claim":     (*link).claim,     // claim 192.0.2.70 to a: only a hears the announcement
		"crash":     (*link).crash,     // crash a: machine a loses power
		"start":     (*link).start,     // start a: machine a starts without state
		"stop":      (*link).stop,      // stop a: machine a stands still until "continue"
		"continue":  (*link).resume,    // continue a: machine a continues after "stop"
		"announcer": (*link).announcer, // announcer a stops|starts: its kernel still answers
		"link":      (*link).setLink,   // link a down|up: the link of machine a
		"split":     (*link).split,     // split a | b c: packets of a do not reach b and c
		"heal":      (*link).heal,      // heal: ends the split
		"apiserver": (*link).setServer, // apiserver down|up
		"offline":   (*link).offline,   // offline a: node a does not reach the API server
		"online":    (*link).online,    // online a: node a reaches the API server again
		"exclude":   (*link).exclude,   // exclude a: the Node gets the label for exclusion
		"include":   (*link).include,   // include a: removes this label
	})
}

// link is the network of a script.
type link struct {
	t         *testing.T
	nodes     []*scripted
	apiServer bool
	objects   facts
	begin     time.Time // start of the command `run`
	out       []string
}

// scripted is a node of a script.
type scripted struct {
	linktest.Machine
	name    string
	address netip.Addr
	mac     neighbor.MAC
	works   bool // the announcer runs
	online  bool // the node reaches the API server
	renewed time.Time
	lease   lease
	known   facts
	state   state
	heard   []neighbor.SeenAddress
	// The values that were printed last.
	answers, silent string
	cutOff          bool
}

// running reports whether the machine and its announcer run.
func (m *scripted) running() bool { return m.Running && m.works }

// repeated matches a number and the character that it repeats.
var repeated = regexp.MustCompile(`[0-9]+[^0-9]`)

// counted replaces each series of equal letters by its length and the letter. For example, it
// returns "3h 1s" for "hhhs".
func counted(row string) string {
	var out []string
	for row != "" {
		rest := strings.TrimLeft(row, row[:1])
		out = append(out, fmt.Sprint(len(row)-len(rest), row[:1]))
		row = rest
	}
	return strings.Join(out, " ")
}

func (n *link) hear(args []string) string {
	others := []Node{{Name: "other", Addresses: []netip.Addr{vip4}}}
	var h peerState
	input := repeated.ReplaceAllStringFunc(args[0], func(part string) string {
		count, err := strconv.Atoi(part[:len(part)-1])
		if err != nil {
			n.t.Fatal(err)
		}
		return strings.Repeat(part[len(part)-1:], count)
	})
	out := ""
	for _, character := range input {
		var claims []neighbor.SeenAddress
		switch character {
		case '!', '+':
			claims = []neighbor.SeenAddress{{Address: vip4.Next(), Announced: true}, {Address: vip4, MAC: other, Announced: character == '!'}}
		case '_':
			time.Sleep(time.Second)
		case '-':
			time.Sleep(3 * time.Second)
		}
		var do peerActions
		h, do = h.step(time.Now(), others, claims)
		time.Sleep(neighbor.StepInterval)
		letter := "h"
		switch _, heard := h.heard["other"]; {
		case len(do.solicit) > 0:
			letter = "?"
		case h.silent("other"):
			letter = "s"
		case !heard:
			letter = "b"
		}
		if do.reannounce {
			letter = strings.ToUpper(letter)
		}
		out += letter
	}
	if input != args[0] {
		return counted(out)
	}
	return "     " + out // five spaces align the output with the input
}

func (n *link) addNodes(args []string) string {
	for i, name := range args {
		m := &scripted{
			Machine: linktest.Machine{Link: true}, name: name, online: true,
			address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), mac: neighbor.MAC{2, 0, 0, 0, 0, byte(i + 1)},
		}
		n.nodes = append(n.nodes, m)
		n.objects.nodes = append(n.objects.nodes, Node{Name: name, Ready: true, Addresses: []netip.Addr{m.address}})
		n.start([]string{name})
	}
	return ""
}

// change copies the objects of the API server, lets edit change the copy, and replaces the objects
// by it.
func (n *link) change(edit func(*facts)) {
	next := facts{n.objects.version + 1, slices.Clone(n.objects.nodes), slices.Clone(n.objects.services)}
	edit(&next)
	n.objects = next
}

func (n *link) service(args []string) string {
	s := Service{Addresses: addrs(args[0]), Local: slices.Contains(args, "local"), Endpoints: scripttest.Words(args, "local")}
	n.change(func(f *facts) {
		f.services = slices.DeleteFunc(f.services, func(o Service) bool { return o.Addresses[0] == s.Addresses[0] })
		f.services = append(f.services, s)
	})
	return ""
}

// index returns the index of the node with this name. Without such a node, it fails the test.
func (n *link) index(name string) int {
	i := slices.IndexFunc(n.nodes, func(m *scripted) bool { return m.name == name })
	if i < 0 {
		n.t.Fatalf("no node %q", name)
	}
	return i
}

// find returns the node with this name. Without such a node, it fails the test.
func (n *link) find(name string) *scripted { return n.nodes[n.index(name)] }

// print adds a line about a node to the output of the command, with the time since the start of the
// command.
func (n *link) print(m *scripted, format string, args ...any) {
	n.out = append(n.out, fmt.Sprintf("%s %s: ", time.Since(n.begin), m.name)+fmt.Sprintf(format, args...))
}

func (n *link) run(args []string) string {
	d := scripttest.Duration(n.t, args[0])
	n.out = nil
	for n.begin = time.Now(); time.Since(n.begin) < d; time.Sleep(neighbor.StepInterval) {
		n.controlPlane()
		for _, m := range n.nodes {
			if m.running() {
				n.step(m)
			}
		}
	}
	return strings.Join(n.out, "\n")
}

func (n *link) wait(args []string) string {
	n.run(args)
	return ""
}

// controlPlane renews the Leases of nodes that reach the API server, and marks Nodes as ready or
// not ready by the age of their Leases. It does nothing while the API server is down.
func (n *link) controlPlane() {
	if !n.apiServer {
		return
	}
	for i, m := range n.nodes {
		if m.Running && m.online && time.Since(m.renewed) >= 10*time.Second {
			m.renewed = time.Now()
		}
		if ready := time.Since(m.renewed) <= lost; ready != n.objects.nodes[i].Ready {
			n.change(func(f *facts) { f.nodes[i].Ready = ready })
			n.print(m, "its Node is ready: %t", ready)
		}
	}
}

// connected reports whether packets of node a reach node b.
func connected(a, b *scripted) bool {
	return a != b && a.Running && b.Running && linktest.Connected(&a.Machine, &b.Machine)
}

// send delivers a packet with an address from one node to another, if the receiver is reachable and
// its announcer works.
func send(sender, receiver *scripted, address netip.Addr, announced bool) {
	if connected(sender, receiver) && receiver.works {
		receiver.heard = append(receiver.heard, neighbor.SeenAddress{Address: address, MAC: sender.mac, Announced: announced})
	}
}

// step reads the objects of the API server for a node, if the node reaches it, then runs a step of
// the node and performs its actions.
func (n *link) step(m *scripted) {
	if m.online && n.apiServer {
		m.lease = m.lease.renewed(m.renewed.String(), time.Now())
		if m.known.nodes == nil || m.known.version != n.objects.version {
			m.known, m.state.candidates = n.objects, nil
		}
	}
	if m.known.nodes == nil {
		m.heard = nil // a node does not listen before its first list
		return
	}
	cutOff := m.lease.cutOff(time.Now())
	if cutOff != m.cutOff {
		m.cutOff = cutOff
		n.print(m, "is cut off from the API server: %t", cutOff)
	}
	var do actions
	m.state, do = m.state.step(observation{
		now: time.Now(), self: m.name, nodes: m.known.nodes, services: m.known.services, heard: m.heard, noLink: !m.Link, cutOff: cutOff,
	})
	m.heard = nil
	if silent := strings.Join(do.silent, " "); silent != m.silent {
		m.silent = silent
		n.print(m, "silent nodes: %s", cmp.Or(silent, "none"))
	}
	if answers := words(m.state.claims.answered()); answers != m.answers {
		m.answers = answers
		n.print(m, "answers for %s", cmp.Or(answers, "no address"))
	}
	n.perform(m, do)
}

// perform sends the packets of a step.
func (n *link) perform(m *scripted, do actions) {
	if len(do.announce) > 0 {
		n.print(m, "announces %s", words(do.announce))
	}
	if len(do.probe) > 0 {
		n.print(m, "probes %s", words(do.probe))
	}
	for _, o := range n.nodes {
		if do.announceSelf {
			send(m, o, m.address, true)
		}
		for _, a := range do.announce {
			send(m, o, a, true)
		}
		for _, a := range do.probe {
			if connected(m, o) && o.works && slices.Contains(o.state.claims.answered(), a) {
				send(o, m, a, false)
			}
		}
		for _, c := range do.solicit {
			if c.MAC == o.mac {
				send(o, m, o.address, false) // the kernel of o answers
			}
		}
	}
}

func (n *link) owners([]string) string {
	var out []string
	for _, s := range n.objects.services {
		line := s.Addresses[0].String() + ":"
		for _, m := range n.nodes {
			if m.running() && slices.Contains(m.state.claims.answered(), s.Addresses[0]) {
				line += " " + m.name
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func (n *link) claim(args []string) string {
	m := n.find(scripttest.Word(args, "to"))
	m.heard = append(m.heard, neighbor.SeenAddress{Address: netip.MustParseAddr(args[0]), MAC: other, Announced: true})
	return ""
}

func (n *link) crash(args []string) string {
	m := n.find(args[0])
	m.Running, m.works = false, false
	return ""
}

func (n *link) start(args []string) string {
	m := n.find(args[0])
	m.Start()
	m.works, m.state, m.heard, m.known = true, state{}, nil, facts{}
	m.answers, m.silent, m.cutOff, m.lease = "", "", false, lease{}.renewed("", time.Now())
	return ""
}

func (n *link) stop(args []string) string {
	n.find(args[0]).Running = false
	return ""
}

func (n *link) resume(args []string) string {
	n.find(args[0]).Running = true
	return ""
}

func (n *link) announcer(args []string) string {
	if args[1] == "starts" {
		return n.start(args)
	}
	n.find(args[0]).works = false
	return ""
}

func (n *link) setLink(args []string) string {
	m := n.find(args[0])
	m.Link = args[1] == "up"
	m.state.peers, m.state.claims = peerState{}, m.state.claims.reannounce() // as agent.run does
	return ""
}

func (n *link) split(args []string) string {
	linktest.Split(args, func(name string) *linktest.Machine { return &n.find(name).Machine })
	return ""
}

func (n *link) heal([]string) string {
	for _, m := range n.nodes {
		m.Side = 0
	}
	return ""
}

func (n *link) setServer(args []string) string {
	n.apiServer = args[0] == "up"
	// While the server was down, no node could renew its Lease. So the age of each Lease counts
	// from now.
	for _, m := range n.nodes {
		m.renewed = time.Now()
	}
	return ""
}

func (n *link) offline(args []string) string {
	n.find(args[0]).online = false
	return ""
}

func (n *link) online(args []string) string {
	n.find(args[0]).online = true
	return ""
}

func (n *link) exclude(args []string) string {
	n.change(func(f *facts) { f.nodes[n.index(args[0])].Excluded = true })
	return ""
}

func (n *link) include(args []string) string {
	n.change(func(f *facts) { f.nodes[n.index(args[0])].Excluded = false })
	return ""
}
