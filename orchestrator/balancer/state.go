package balancer

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

const (
	// steady is between an answer and the next question to a server that has connections, is the
	// preferred one, or is not ready.
	steady = 2 * time.Second
	// standby is the same for others, which are asked at once when they get a connection and were
	// not for long. So each of three servers is asked by a hundred nodes 24 times a second, in all,
	// and a question is a small one over a connection that is there.
	standby = 10 * time.Second
	// again is the same after a first failure, and while no server works.
	again = 500 * time.Millisecond
	// alone is how long after the start no server has to work before connections go to what stands
	// in for one: as long as one that starts anew, or a link that comes up, may take without
	// anybody's being worse off.
	alone = 10 * time.Second
)

// level is what is known of a server, the best first. New connections are tried in this order.
type level int

const (
	ready   level = iota
	doubted       // it was ready, and then failed once
	unknown       // it was not asked yet
	// it answers that it is not ready, or does not let us ask: connections are better than none
	unready
	down // it does not answer, or is not of this cluster; it gets no connection
)

// server is one API server.
type server struct {
	address  string // host:port
	level    level
	why      string    // what is wrong, in a few words; empty when nothing is
	asking   bool      // a question is under way
	answered time.Time // when the last one was answered or given up; zero to ask at once
	open     int       // connections
}

// State is what the balancer knows of the API servers, those first that this node prefers. Make it
// with NewState.
type State struct {
	servers []server
	// the address of what stands in for an API server; empty when there is none, or one has worked
	standIn string
	began   time.Time // when it was first asked what to do
	stands  bool      // connections go to standIn
	met     bool      // a server has worked
}

// ProbeResult is what became of a question.
type ProbeResult struct {
	Reachable bool   // the server has answered, and is one of the cluster's
	Problem   string // why it is not ready; empty when it is
}

// Actions is what is to be done now.
type Actions struct {
	Probe      []string // servers; each is told to Answered
	Close      []string // servers whose connections are to be closed
	FirstReady bool     // for the first time one has worked: nothing stands in for it from now on
	// when there is something to be done again if nothing happens before; zero for never
	Until time.Time
}

// Servers returns the addresses (host:port) of the API servers that the node's description names,
// in the order in which the node prefers them. A control-plane machine's own, by loopback, is the
// first one: nothing of the network has to work for it. The others are in an order of the node's
// own, so that nodes spread over them, and only those of a server that is gone move (rendezvous
// hashing: Thaler, Ravishankar, 1998).
//
// The endpoint comes last: it is another way to one of them, and the only one that is known when
// none is named.
func Servers(spec nodespec.Spec) ([]string, error) {
	endpoint, err := url.Parse(spec.Endpoint)
	if err != nil || endpoint.Hostname() == "" || endpoint.Port() == "" {
		return nil, fmt.Errorf("endpoint %q: cannot be balanced: expected https://host:port", spec.Endpoint)
	}
	last := net.JoinHostPort(endpoint.Hostname(), endpoint.Port())
	all := addresses(spec.OtherControlPlanes())
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(weight(spec.NodeName, b), weight(spec.NodeName, a)) })
	known := slices.Contains(all, last)
	if spec.ControlPlane {
		all = slices.Insert(all, 0, kubeconfig.Loopback.String())
		known = known || slices.Contains(addresses(spec.NodeIPs), last)
	}
	if !known {
		all = append(all, last)
	}
	return all, nil
}

// addresses are those of machines' API servers.
func addresses(machines []netip.Addr) (all []string) {
	for _, m := range machines {
		all = append(all, netip.AddrPortFrom(m, paths.PortKubernetes).String())
	}
	return all
}

// weight is how much a node likes a server: chance, but always the same.
func weight(node, server string) string {
	sum := sha256.Sum256([]byte(node + " " + server))
	return string(sum[:])
}

// NewState knows nothing of the servers yet. They are given in the order of preference. standIn is
// the address of what stands in for them after the start (package standin), empty when there is
// nothing.
func NewState(addresses []string, standIn string) State {
	s := State{standIn: standIn}
	for _, a := range addresses {
		s.servers = append(s.servers, server{address: a, level: unknown, why: "not asked yet"})
	}
	return s
}

// Order returns the servers that a new connection is to try, one after the other.
func (s *State) Order() []string {
	var out []string
	for _, one := range s.sorted() {
		if one.level != down {
			out = append(out, one.address)
		}
	}
	if s.stands {
		out = []string{s.standIn}
	}
	return out
}

func (s *State) sorted() []server {
	return slices.SortedStableFunc(slices.Values(s.servers), func(a, b server) int { return cmp.Compare(a.level, b.level) })
}

// ProbeDone tells what became of a question to a server. Two failures in a row count, or the first
// one of a server that was not ready anyway.
func (s *State) ProbeDone(address string, a ProbeResult, now time.Time) {
	one := s.find(address)
	one.asking, one.answered, one.why = false, now, a.Problem
	switch {
	case a.Problem == "":
		one.level = ready
		s.standIn, s.stands = "", false
	case one.level == ready:
		one.level = doubted
	case a.Reachable:
		one.level = unready
	default:
		one.level = down
	}
}

// ConnectFailed tells that a server did not take a connection. That may be this machine's fault, so it is
// asked at once, and its other connections stay; but new ones go elsewhere until it has answered.
func (s *State) ConnectFailed(address, problem string) {
	if one := s.find(address); one.level == ready {
		one.level, one.why, one.answered = doubted, problem, time.Time{}
	}
}

// ConnOpened and Closed count a server's connections.
func (s *State) ConnOpened(address string) { s.find(address).open++ }

// ConnClosed is Opened's opposite.
func (s *State) ConnClosed(address string) { s.find(address).open-- }

// Next decides what is to be done at a time, and takes it for done. Connections are closed only
// when there is a better server for them: to have them closed leads a client nowhere otherwise, and
// the network ends those whose other end is gone.
func (s *State) Next(now time.Time) Actions {
	var todo Actions
	better := s.have(ready) > 0
	todo.FirstReady, s.met = better && !s.met, s.met || better
	if s.began.IsZero() {
		s.began = now
	}
	// Those that answer and are not ready have nothing to lose by it: they are asked on, and met
	// when they are.
	if due := s.began.Add(alone); s.standIn != "" && !s.stands && s.have(ready)+s.have(doubted)+s.have(unknown) == 0 {
		if s.stands = !due.After(now); !s.stands {
			todo.Until = due
		} else { // who is connected with one that answers, and has nothing to say, comes again
			for _, one := range s.servers {
				if one.open > 0 {
					todo.Close = append(todo.Close, one.address)
				}
			}
		}
	}
	for i := range s.servers {
		one := &s.servers[i]
		if better && one.open > 0 && one.level >= unready {
			todo.Close = append(todo.Close, one.address)
		}
		if one.asking {
			continue
		}
		due := one.answered.Add(s.pause(i))
		switch {
		case one.answered.IsZero() || !due.After(now):
			one.asking = true
			todo.Probe = append(todo.Probe, one.address)
		case todo.Until.IsZero() || due.Before(todo.Until):
			todo.Until = due
		}
	}
	return todo
}

// pause is how long after its last answer a server is asked again.
func (s *State) pause(i int) time.Duration {
	one := s.servers[i]
	switch {
	case one.level == doubted || s.have(ready) == 0:
		return again
	case i > 0 && one.open == 0 && one.level == ready:
		return standby
	}
	return steady
}

// have counts the servers of a level.
func (s *State) have(l level) int {
	n := 0
	for _, one := range s.servers {
		if one.level == l {
			n++
		}
	}
	return n
}

// Describe tells whether there is a server that works, which one gets new connections, and what is
// wrong with the others. Before the first answer there is nothing to tell.
func (s *State) Describe() (works bool, detail string) {
	if s.have(unknown) == len(s.servers) {
		return false, ""
	}
	sorted := s.sorted()
	var parts []string
	for i, one := range sorted {
		switch {
		case i == 0 && one.level <= doubted:
			works = true
			parts = append(parts, "API server "+one.address)
		case one.why != "" && (one.level != unknown || !works):
			parts = append(parts, one.address+": "+one.why)
		}
	}
	switch {
	case s.stands:
		parts = slices.Insert(parts, 0, "no API server works; the stand-in answers")
	case !works:
		parts = slices.Insert(parts, 0, "no API server works")
	}
	return works, strings.Join(parts, "; ")
}

// find returns a server of those that NewState was given; others are nobody's to ask about.
func (s *State) find(address string) *server {
	i := slices.IndexFunc(s.servers, func(one server) bool { return one.address == address })
	if i < 0 {
		return &server{}
	}
	return &s.servers[i]
}
