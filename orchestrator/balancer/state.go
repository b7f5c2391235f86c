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
	// probeInterval is the pause from the end of a probe to the next probe of a server that has
	// connections, is the first in the order of preference, or is not ready.
	probeInterval = 2 * time.Second
	// standbyInterval is the pause for the other servers. When a standby server gets its first
	// connection, its pause becomes probeInterval, so its next probe is usually due at once. With
	// three servers and a hundred nodes, each server gets 24 probes per second in total: a third of
	// the nodes prefers it and probes it every 2 s, the other nodes probe it every 10 s. A probe is
	// small and uses an open connection.
	standbyInterval = 10 * time.Second
	// retryInterval is the pause after the first failure of a server, and for all servers while no
	// server is ready.
	retryInterval = 500 * time.Millisecond
	// offlineAfter is the time from the start of the balancer until connections can go to the
	// offline API server, which answers from recorded objects (package offlineapi). They go there
	// if every API server is unready or down by then. A server or link that restarts within this
	// time causes no switch.
	offlineAfter = 10 * time.Second
)

// level is the state of a server, the best first. New connections try the servers in this order.
type level int

const (
	ready   level = iota
	doubted       // it was ready, and then failed once
	unknown       // it was not probed yet
	// it answers that it is not ready, or rejects the probe; it may still serve connections, so it
	// gets them if there is no better server
	unready
	down // it does not answer, or is not of this cluster; it gets no connection
)

// server is an API server.
type server struct {
	address   string // host:port
	level     level
	problem   string    // the problem, in a few words, or empty
	probing   bool      // a probe is running
	lastProbe time.Time // when the last probe ended; zero to probe at once
	open      int       // connections
}

// State is the balancer's knowledge of the API servers, in the order of preference of this node.
// Make it with NewState.
type State struct {
	servers []server
	// the address of the offline API server; empty without an offline API server, or after an API
	// server was ready
	offlineAPI string
	started    time.Time // time of the first call of Next
	offline    bool      // connections go to offlineAPI
	everReady  bool      // a server was ready
}

// ProbeResult is the result of a probe.
type ProbeResult struct {
	Reachable bool   // the server has answered, and belongs to the cluster
	Problem   string // why it is not ready, or empty
}

// Actions are the operations to perform now.
type Actions struct {
	Probe      []string // servers to probe; the caller reports each result to ProbeDone
	Close      []string // servers to which the caller closes all connections
	FirstReady bool     // a server is ready for the first time, so the offline API server stops
	// Next must be called at this time if no event occurs before. If it is zero, Next must be
	// called only after an event.
	Until time.Time
}

// Servers returns the addresses (host:port) of the API servers in the description of the node, in
// the node's order of preference. A control-plane machine's own server, on loopback, is the first:
// it needs no network. The order of the others is specific to the node, so that nodes spread over
// the servers, and only the nodes of a lost server move (rendezvous hashing: Thaler, Ravishankar,
// 1998).
//
// The endpoint is the last: it is another path to one of these servers, and the only known address
// if the description names no control-plane machine.
func Servers(spec nodespec.Spec) ([]string, error) {
	endpoint, err := url.Parse(spec.Endpoint)
	if err != nil || endpoint.Hostname() == "" || endpoint.Port() == "" {
		return nil, fmt.Errorf("endpoint %q: cannot be balanced: expected https://host:port", spec.Endpoint)
	}
	last := net.JoinHostPort(endpoint.Hostname(), endpoint.Port())
	all := addresses(spec.OtherControlPlanes())
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(weight(spec.Node.Name, b), weight(spec.Node.Name, a)) })
	known := slices.Contains(all, last)
	if spec.Node.ControlPlane {
		all = slices.Insert(all, 0, kubeconfig.Loopback.String())
		known = known || slices.Contains(addresses(spec.Node.IPs), last)
	}
	if !known {
		all = append(all, last)
	}
	return all, nil
}

// addresses returns the addresses of the machines' API servers.
func addresses(machines []netip.Addr) (all []string) {
	for _, m := range machines {
		all = append(all, netip.AddrPortFrom(m, paths.PortKubernetes).String())
	}
	return all
}

// weight is the preference of a node for a server: a hash of both names, random but always the
// same.
func weight(node, server string) string {
	sum := sha256.Sum256([]byte(node + " " + server))
	return string(sum[:])
}

// NewState returns a state that knows only the addresses of the servers, in the order of
// preference. offlineAPI is the address of the offline API server (package offlineapi), or empty.
func NewState(addresses []string, offlineAPI string) State {
	s := State{offlineAPI: offlineAPI}
	for _, a := range addresses {
		s.servers = append(s.servers, server{address: a, level: unknown, problem: "not probed yet"})
	}
	return s
}

// Order returns the servers that a new connection tries, in order.
func (s *State) Order() []string {
	var out []string
	for _, one := range s.sorted() {
		if one.level != down {
			out = append(out, one.address)
		}
	}
	if s.offline {
		out = []string{s.offlineAPI}
	}
	return out
}

func (s *State) sorted() []server {
	return slices.SortedStableFunc(slices.Values(s.servers), func(a, b server) int { return cmp.Compare(a.level, b.level) })
}

// ProbeDone records the result of a probe. After a failed probe, a ready server becomes doubted.
// Any other server, also a doubted server, becomes unready if it has answered the probe, and down
// if it has not.
func (s *State) ProbeDone(address string, a ProbeResult, now time.Time) {
	one := s.find(address)
	one.probing, one.lastProbe, one.problem = false, now, a.Problem
	switch {
	case a.Problem == "":
		one.level = ready
		s.offlineAPI, s.offline = "", false
	case one.level == ready:
		one.level = doubted
	case a.Reachable:
		one.level = unready
	default:
		one.level = down
	}
}

// ConnectFailed records that a server did not accept a connection. The cause may be this machine,
// so the other connections of the server stay, and the server is probed at once. Until it has
// answered the probe, new connections prefer the other ready servers.
func (s *State) ConnectFailed(address, problem string) {
	if one := s.find(address); one.level == ready {
		one.level, one.problem, one.lastProbe = doubted, problem, time.Time{}
	}
}

// ConnOpened counts a new connection of a server.
func (s *State) ConnOpened(address string) { s.find(address).open++ }

// ConnClosed counts a closed connection of a server.
func (s *State) ConnClosed(address string) { s.find(address).open-- }

// Next returns the actions of this moment, and assumes that they are performed. Next closes
// connections only if there is a better server for them: without a better server, a client gains
// nothing by a new connection, and the kernel itself ends a connection whose peer is lost.
func (s *State) Next(now time.Time) Actions {
	var todo Actions
	better := s.count(ready) > 0
	todo.FirstReady, s.everReady = better && !s.everReady, s.everReady || better
	if s.started.IsZero() {
		s.started = now
	}
	// After offlineAfter, connections go to the offline API server if each API server is unready or
	// down. That does not harm an unready server: it is still probed, and gets connections again
	// when it is ready.
	if due := s.started.Add(offlineAfter); s.offlineAPI != "" && !s.offline && s.count(ready)+s.count(doubted)+s.count(unknown) == 0 {
		s.offline = !now.Before(due)
		if !s.offline {
			todo.Until = due
		} else { // so that the clients of an unready server connect to the offline API server
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
		if one.probing {
			continue
		}
		due := one.lastProbe.Add(s.pause(i))
		switch {
		case one.lastProbe.IsZero() || !due.After(now):
			one.probing = true
			todo.Probe = append(todo.Probe, one.address)
		case todo.Until.IsZero() || due.Before(todo.Until):
			todo.Until = due
		}
	}
	return todo
}

// pause returns the time from the end of the last probe of a server, by its index, to the next
// probe.
func (s *State) pause(i int) time.Duration {
	one := s.servers[i]
	switch {
	case one.level == doubted || s.count(ready) == 0:
		return retryInterval
	case i > 0 && one.open == 0 && one.level == ready:
		return standbyInterval
	}
	return probeInterval
}

// count counts the servers of a level.
func (s *State) count(l level) int {
	n := 0
	for _, one := range s.servers {
		if one.level == l {
			n++
		}
	}
	return n
}

// Describe reports whether a server works (is ready or doubted). detail contains the server that
// gets new connections, and the problems of the others; it is empty before the first answer.
func (s *State) Describe() (works bool, detail string) {
	if s.count(unknown) == len(s.servers) {
		return false, ""
	}
	sorted := s.sorted()
	var parts []string
	for i, one := range sorted {
		switch {
		case i == 0 && one.level <= doubted:
			works = true
			parts = append(parts, "API server "+one.address)
		// a server that was not probed yet is listed only if no server works
		case one.problem != "" && (one.level != unknown || !works):
			parts = append(parts, one.address+": "+one.problem)
		}
	}
	switch {
	case s.offline:
		parts = slices.Insert(parts, 0, "no API server works; the offline API server answers")
	case !works:
		parts = slices.Insert(parts, 0, "no API server works")
	}
	return works, strings.Join(parts, "; ")
}

// find returns the server with this address. For an address that NewState did not get, it returns a
// server that no other code uses, so a change of it has no effect.
func (s *State) find(address string) *server {
	i := slices.IndexFunc(s.servers, func(one server) bool { return one.address == address })
	if i < 0 {
		return &server{}
	}
	return &s.servers[i]
}
