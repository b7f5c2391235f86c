package apivip

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// pause is between an answer of another machine's API server and the next question; pauseOwn is
	// the same of this machine's. When one came late, the next question follows at once.
	pause    = time.Second
	pauseOwn = 500 * time.Millisecond
	// patience is how long an API server may take to answer.
	patience = 900 * time.Millisecond
	// lateAtMost is how many answers in a row may be late until a server counts as not ready.
	lateAtMost = 1
)

// ReadyPath is what API servers are asked. Of what makes one ready, two things depend on etcd once
// it was ready for the first time, and they do not count here: when etcd has no majority no API
// server can do more than another, and reads from caches go on.
const ReadyPath = "/readyz?exclude=etcd&exclude=etcd-readiness"

// APIServer is what is known of an API server. The zero Server was not asked yet, and is not ready.
type APIServer struct {
	Ready   bool
	Problem string // why it is not
	late    int    // answers in a row
}

// Answered follows an answer. One that says that the server is not ready, or not there, counts at
// once. A late one may be late because the machine is busy, so the first one changes nothing.
func (s APIServer) Answered(problem string, late bool) APIServer {
	if !late {
		return APIServer{Ready: problem == "", Problem: problem}
	}
	s.late++
	if s.late > lateAtMost || !s.Ready {
		s.Ready, s.Problem = false, problem
	}
	return s
}

// next is how long after an answer the server is asked again.
func (s APIServer) next(own bool) time.Duration {
	switch {
	case s.late > 0 && s.late <= lateAtMost:
		return 0
	case own:
		return pauseOwn
	}
	return pause
}

// ahead counts the machines that stand before one in the list and are ready.
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

// mostReady tells whether more than half of the machines in the list are known to be ready.
func mostReady(list []netip.Addr, servers map[netip.Addr]APIServer) bool {
	n := 0
	for _, a := range list {
		if servers[a].Ready {
			n++
		}
	}
	return 2*n > len(list)
}

// anyReady tells whether any of the machines in the list is known to be ready.
func anyReady(list []netip.Addr, servers map[netip.Addr]APIServer) bool {
	return slices.ContainsFunc(list, func(a netip.Addr) bool { return servers[a].Ready })
}
