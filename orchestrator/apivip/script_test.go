package apivip

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/orchestrator/neighbor/linktest"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). All machines perform their steps at the
// same time. A machine knows immediately which of the API servers that it can reach are ready.
//
// The output of `run` and `see` has a letter for each step of a machine, 200 ms apart: "." the
// machine listens, "?" it probes the link, "A" it announces the address, "a" it holds the address,
// and "_" it does not run.
//
// The argument of `see` is the input of each step of a single machine: "." no input, "l" and "h" a
// claim of a machine with a lower or a higher hardware address, "x" the own API server is not
// ready, "o" the machine knows no ready API server, "i" it does not know a majority of ready API
// servers, "L" and "H" like "i" with a claim as for "l" and "h", and "_" the machine is suspended.
// `ahead` is the number of ready API servers before its own in the list of control planes.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *link { return &link{t: t} }, scripttest.Commands[*link]{
		"see":       (*link).see,       // see TIMELINE [ahead 2]: prints the steps of one machine
		"machines":  (*link).addAll,    // machines a b c: adds machines, in the order of the list
		"run":       (*link).run,       // run 3s: prints the steps of all machines
		"wait":      (*link).wait,      // wait 1m: like run, but prints nothing
		"api":       (*link).api,       // api a ready|unready: the API server of a
		"link":      (*link).setLink,   // link a up|down: the link of a
		"split":     (*link).split,     // split a | b c: the network separates a from b and c
		"heal":      (*link).heal,      // heal: ends the separation of the network
		"stop":      (*link).stop,      // stop a: the machine is suspended
		"continue":  (*link).resume,    // continue a: the suspended machine continues
		"crash":     (*link).stop,      // crash a: the power fails
		"start":     (*link).start,     // start a: the machine starts without state
		"component": (*link).component, // component a stops|starts: the API server of a still works
	})
}

// link is the network of a script.
type link struct {
	t        *testing.T
	machines []*scripted
}

// scripted is a machine of a script.
type scripted struct {
	linktest.Machine
	name    string
	address netip.Addr
	mac     neighbor.MAC
	ready   bool // its API server
	mute    bool // the component does not run
	state   State
	claims  []neighbor.MAC
}

// letter describes the result of a step.
func letter(t *testing.T, s State, todo Actions) string {
	switch {
	case todo.Announce && s.Active && !todo.Probe:
		return "A"
	case todo.Announce:
		t.Fatalf("the step has the actions %+v, and the machine holds the address: %t", todo, s.Active)
	case todo.Probe:
		return "?"
	case s.Active:
		return "a"
	}
	return "."
}

func (n *link) see(args []string) string {
	low, own, high := neighbor.MAC{2, 0, 0, 0, 0, 1}, neighbor.MAC{2, 0, 0, 0, 0, 2}, neighbor.MAC{2, 0, 0, 0, 0, 3}
	claims := map[rune]neighbor.MAC{'l': low, 'h': high, 'L': low, 'H': high}
	first := 0
	if word := scripttest.Word(args, "ahead"); word != "" {
		var err error
		if first, err = strconv.Atoi(word); err != nil {
			n.t.Fatal(err)
		}
	}
	var s State
	out := ""
	for _, seen := range args[0] {
		time.Sleep(neighbor.StepInterval)
		if seen == '_' {
			out += "_"
			continue
		}
		v := Observation{Now: time.Now(), Eligible: seen != 'x' && seen != 'o', Last: seen == 'o', Most: !strings.ContainsRune("oiLH", seen), Ahead: first, Own: own}
		if other, ok := claims[seen]; ok {
			v.Claims = append(v.Claims, other)
		}
		var todo Actions
		s, todo = s.Step(v)
		out += letter(n.t, s, todo)
	}
	return "    " + out // below the input
}

func (n *link) addAll(args []string) string {
	for i, name := range args {
		n.machines = append(n.machines, &scripted{
			Machine: linktest.Machine{Running: true, Link: true}, name: name, ready: true,
			address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), mac: neighbor.MAC{2, 0, 0, 0, 0, byte(i + 1)},
		})
	}
	return ""
}

// find returns the machine with the given name.
func (n *link) find(name string) *scripted {
	i := slices.IndexFunc(n.machines, func(m *scripted) bool { return m.name == name })
	if i < 0 {
		n.t.Fatalf("no machine %q", name)
	}
	return n.machines[i]
}

// steps reports whether the component of a machine runs.
func (m *scripted) steps() bool { return m.Running && !m.mute }

// known returns the readiness of the API servers that a machine can reach.
func (n *link) known(m *scripted) (list []netip.Addr, servers map[netip.Addr]APIServer) {
	servers = map[netip.Addr]APIServer{}
	for _, o := range n.machines {
		list = append(list, o.address)
		servers[o.address] = APIServer{Ready: o.ready && o.Running && (o == m || linktest.Connected(&o.Machine, &m.Machine))}
	}
	return list, servers
}

func (n *link) run(args []string) string {
	d := scripttest.Duration(n.t, args[0])
	rows := make([]string, len(n.machines))
	var moves []string
	for begin := time.Now(); time.Since(begin) < d; {
		time.Sleep(neighbor.StepInterval)
		for i, m := range n.machines {
			if !m.steps() {
				rows[i] += "_"
				continue
			}
			todo := n.step(m)
			rows[i] += letter(n.t, m.state, todo)
			if todo.Moved {
				moves = append(moves, fmt.Sprintf("%s after %s: the holder has changed", m.name, time.Since(begin)))
			}
		}
	}
	for i, m := range n.machines {
		rows[i] = m.name + " " + rows[i]
	}
	return strings.Join(append(rows, moves...), "\n")
}

func (n *link) wait(args []string) string {
	n.run(args)
	return ""
}

// step performs a step of a machine.
func (n *link) step(m *scripted) Actions {
	list, servers := n.known(m)
	var todo Actions
	m.state, todo = m.state.Step(Observation{
		Now: time.Now(), Eligible: m.Link && servers[m.address].Ready, Last: m.Link && !anyReady(list, servers), Most: mostReady(list, servers),
		Ahead: ahead(list, m.address, servers), Own: m.mac, Claims: m.claims,
	})
	m.claims = nil
	for _, o := range n.machines {
		if o == m || !o.steps() || !linktest.Connected(&m.Machine, &o.Machine) {
			continue
		}
		if todo.Announce {
			o.claims = append(o.claims, m.mac)
		}
		if todo.Probe && o.state.Active {
			m.claims = append(m.claims, o.mac)
		}
	}
	return todo
}

func (n *link) api(args []string) string {
	n.find(args[0]).ready = args[1] == "ready"
	return ""
}

func (n *link) setLink(args []string) string {
	n.find(args[0]).Link = args[1] == "up"
	return ""
}

func (n *link) split(args []string) string {
	linktest.Split(args, func(name string) *linktest.Machine { return &n.find(name).Machine })
	return ""
}

func (n *link) heal([]string) string {
	for _, m := range n.machines {
		m.Side = 0
	}
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

func (n *link) start(args []string) string {
	m := n.find(args[0])
	m.Start()
	m.mute, m.state, m.claims = false, State{}, nil
	return ""
}

func (n *link) component(args []string) string {
	if args[1] == "starts" {
		return n.start(args)
	}
	n.find(args[0]).mute = true
	return ""
}
