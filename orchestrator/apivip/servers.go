package apivip

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// probeInterval is the time between an answer of another machine's API server and the next
	// probe; ownProbeInterval is the same for the API server of this machine. After a late answer
	// the next probe follows at once.
	probeInterval    = time.Second
	ownProbeInterval = 500 * time.Millisecond
	// timeout is the time within which an API server must answer a probe.
	timeout = 900 * time.Millisecond
	// maxLate is how many consecutive late answers leave a server ready.
	maxLate = 1
)

// ReadyPath is the path of the probes. Two checks of readiness still depend on etcd after a server
// was ready once; the path excludes them. Without a quorum of etcd no API server can do more than
// another, so a move of the address gains nothing, and reads from caches continue.
const ReadyPath = "/readyz?exclude=etcd&exclude=etcd-readiness"

// APIServer is the state of an API server. The zero APIServer was not probed yet, and is not ready.
type APIServer struct {
	Ready   bool
	Problem string // why it is not ready
	late    int    // consecutive late answers
}

// Answered returns the state after an answer. An answer that the server is not ready or not
// reachable changes the state at once. A late answer may be due to a busy machine, so the first
// late answer changes nothing.
func (s APIServer) Answered(problem string, late bool) APIServer {
	if !late {
		return APIServer{Ready: problem == "", Problem: problem}
	}
	s.late++
	if s.late > maxLate || !s.Ready {
		s.Ready, s.Problem = false, problem
	}
	return s
}

// next returns the time from an answer to the next probe.
func (s APIServer) next(own bool) time.Duration {
	switch {
	case s.late > 0 && s.late <= maxLate:
		return 0
	case own:
		return ownProbeInterval
	}
	return probeInterval
}

// ahead counts the ready machines before own in the list.
func ahead(list []netip.Addr, own netip.Addr, servers map[netip.Addr]APIServer) int {
	n := 0
	for _, a := range list {
		if a == own {
			return n
		}
		if servers[a].Ready {
			n++
		}
	}
	return n
}

// mostReady reports whether more than half of the machines in the list are known to be ready.
func mostReady(list []netip.Addr, servers map[netip.Addr]APIServer) bool {
	n := 0
	for _, a := range list {
		if servers[a].Ready {
			n++
		}
	}
	return 2*n > len(list)
}

// anyReady reports whether a machine in the list is known to be ready.
func anyReady(list []netip.Addr, servers map[netip.Addr]APIServer) bool {
	return slices.ContainsFunc(list, func(a netip.Addr) bool { return servers[a].Ready })
}
