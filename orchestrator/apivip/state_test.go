package apivip

import (
	"net/netip"
	"testing"
	"time"
)

func TestServer(t *testing.T) {
	var s APIServer
	for i, c := range []struct {
		problem string
		late    bool
		ready   bool
		next    time.Duration
	}{
		{"does not answer", true, false, 0},
		{"", false, true, probeInterval},
		{"does not answer", true, true, 0},
		{"", false, true, probeInterval},
		{"does not answer", true, true, 0},
		{"does not answer", true, false, probeInterval},
		{"does not answer", true, false, probeInterval},
		{"", false, true, probeInterval},
		{"500: shutdown failed", false, false, probeInterval},
	} {
		s = s.Answered(c.problem, c.late)
		if s.Ready != c.ready || s.next(false) != c.next || s.Ready != (s.Problem == "") {
			t.Errorf("answer %d: %+v, next probe after %v; want ready: %t, next probe after %v", i, s, s.next(false), c.ready, c.next)
		}
	}
	if got := s.next(true); got != ownProbeInterval {
		t.Errorf("the machine's own API server is probed again after %v, want %v", got, ownProbeInterval)
	}
}

func TestAhead(t *testing.T) {
	list := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	servers := map[netip.Addr]APIServer{list[0]: {Ready: true}, list[2]: {Ready: true}}
	for i, want := range []int{0, 1, 1} {
		if got := ahead(list, list[i], servers); got != want {
			t.Errorf("before %s in the list: %d API servers are ready, want %d", list[i], got, want)
		}
	}
}
