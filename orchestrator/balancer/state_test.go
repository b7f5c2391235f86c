package balancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

var begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func addressesOf(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func TestServers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		endpoint string
		planes   []netip.Addr
		want     string // in any order but the last
		err      string
	}{
		{"an address alone", "https://192.0.2.10:6443", nil, "192.0.2.10:6443", ""},
		{"a name and a port alone", "https://cluster.example:443", nil, "cluster.example:443", ""},
		{"the endpoint is one of them", "https://192.0.2.11:6443", addressesOf("192.0.2.10", "192.0.2.11"), "192.0.2.10:6443 192.0.2.11:6443", ""},
		{"the endpoint's port is its own", "https://192.0.2.10:443", addressesOf("192.0.2.10"), "192.0.2.10:6443 192.0.2.10:443", ""},
		{"the endpoint comes last", "https://cluster.example:6443", addressesOf("192.0.2.10", "2001:db8::10"),
			"192.0.2.10:6443 [2001:db8::10]:6443 cluster.example:6443", ""},
		{"IPv6", "https://[2001:db8::10]:6443", addressesOf("2001:db8::10"), "[2001:db8::10]:6443", ""},
		{"no port", "https://192.0.2.10", nil, "", `endpoint "https://192.0.2.10": cannot be balanced: expected https://host:port`},
		{"nothing", "", nil, "", `endpoint "": cannot be balanced: expected https://host:port`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Servers(nodespec.Spec{Node: nodespec.Node{Name: "worker-1"}, Endpoint: tc.endpoint, ControlPlanes: tc.planes})
			if (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			want := strings.Fields(tc.want)
			if len(want) > 0 && len(want) > len(tc.planes) && got[len(got)-1] != want[len(want)-1] {
				t.Errorf("%v: the endpoint is not last", got)
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

// TestOwn checks that a control-plane machine's own server is the first, listed once and on
// loopback, and that the others are as on any machine.
func TestOwn(t *testing.T) {
	planes := addressesOf("192.0.2.10", "192.0.2.11", "192.0.2.12")
	for _, tc := range []struct{ name, endpoint, own, last string }{
		{"the endpoint is another one's", "https://192.0.2.10:6443", "192.0.2.11", ""},
		{"the endpoint is its own", "https://192.0.2.10:6443", "192.0.2.10", ""},
		{"the endpoint is an address of its own that is not in the list", "https://192.0.2.99:6443", "192.0.2.10 192.0.2.99", ""},
		{"the endpoint is everybody's", "https://192.0.2.9:6443", "192.0.2.12", "192.0.2.9:6443"},
		{"it is in the list by an address that it does not know", "https://192.0.2.11:6443", "10.0.0.11", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := nodespec.Spec{Node: nodespec.Node{Name: "cp-1", ControlPlane: true, IPs: addressesOf(strings.Fields(tc.own)...)}, Endpoint: tc.endpoint, ControlPlanes: planes}
			got, err := Servers(spec)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"127.0.0.1:6443"}
			spec.Node.ControlPlane = false // as a worker of the same name
			others, err := Servers(spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range others {
				if !slices.ContainsFunc(spec.Node.IPs, func(a netip.Addr) bool { return strings.HasPrefix(one, a.String()+":") }) {
					want = append(want, one)
				}
			}
			if !slices.Equal(got, want) || tc.last != "" && got[len(got)-1] != tc.last {
				t.Errorf("%v, want %v, at last %q", got, want, tc.last)
			}
		})
	}
}

// TestSpread checks that nodes spread over the servers, and that when a server is removed, only its
// nodes move.
func TestSpread(t *testing.T) {
	const nodes = 3000
	first := func(node string, planes ...string) string {
		spec := nodespec.Spec{Node: nodespec.Node{Name: node}, Endpoint: "https://cluster.example:6443"}
		for _, p := range planes {
			spec.ControlPlanes = append(spec.ControlPlanes, netip.MustParseAddr(p))
		}
		all, err := Servers(spec)
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	count := map[string]int{}
	for i := range nodes {
		node := fmt.Sprintf("worker-%d", i)
		with := first(node, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		if with != first(node, "10.0.0.3", "10.0.0.1", "10.0.0.2") {
			t.Errorf("%s: the order of the list counts", node)
		}
		if without := first(node, "10.0.0.1", "10.0.0.2"); with != "10.0.0.3:6443" && without != with {
			t.Errorf("%s moves from %s to %s although that is there", node, with, without)
		}
		count[with]++
	}
	for server, n := range count {
		if len(count) != 3 || n < nodes*28/100 || n > nodes*39/100 {
			t.Errorf("%s has %d of %d nodes: %v", server, n, nodes, count)
		}
	}
}

// TestState has a line for each event, with the state of the servers, the order of new connections,
// and the closed connections after it.
func TestState(t *testing.T) {
	const a, b, c = "a:1", "b:1", "c:1"
	good, sick, dead := ProbeResult{Reachable: true}, ProbeResult{Reachable: true, Problem: "500: etcd failed"}, ProbeResult{Problem: "does not answer"}
	type line struct {
		happens func(*State)
		order   string
		close   string
		detail  string
	}
	answered := func(address string, answer ProbeResult) func(*State) {
		return func(s *State) { s.ProbeDone(address, answer, begin) }
	}
	failed := func(address string) func(*State) {
		return func(s *State) { s.ConnectFailed(address, "connect: connection refused") }
	}
	opened := func(address string) func(*State) { return func(s *State) { s.ConnOpened(address) } }
	for name, lines := range map[string][]line{
		"start": {
			{func(*State) {}, "a:1 b:1 c:1", "", ""},
			{answered(b, dead), "a:1 c:1", "", "no API server works; a:1: not probed yet; c:1: not probed yet; b:1: does not answer"},
			{answered(c, good), "c:1 a:1", "", "API server c:1; b:1: does not answer"},
			{answered(a, good), "a:1 c:1", "", "API server a:1; b:1: does not answer"},
			{answered(b, good), "a:1 b:1 c:1", "", "API server a:1"},
		},
		"a machine's own server starts last": {
			{answered(b, good), "b:1 a:1 c:1", "", "API server b:1"},
			{failed(a), "b:1 a:1 c:1", "", "API server b:1"},
			{opened(b), "b:1 a:1 c:1", "", "API server b:1"},
			{answered(a, dead), "b:1 c:1", "", "API server b:1; a:1: does not answer"},
			{answered(a, sick), "b:1 c:1 a:1", "", "API server b:1; a:1: 500: etcd failed"},
			{answered(a, good), "a:1 b:1 c:1", "", "API server a:1"},
		},
		"one failure makes others better, the second closes": {
			{answered(a, good), "a:1 b:1 c:1", "", "API server a:1"},
			{answered(b, good), "a:1 b:1 c:1", "", "API server a:1"},
			{opened(a), "a:1 b:1 c:1", "", "API server a:1"},
			{answered(a, dead), "b:1 a:1 c:1", "", "API server b:1; a:1: does not answer"},
			{answered(a, dead), "b:1 c:1", "a:1", "API server b:1; a:1: does not answer"},
			{answered(a, good), "a:1 b:1 c:1", "", "API server a:1"},
		},
		"connections stay where nothing is better, until it is": {
			{answered(a, good), "a:1 b:1 c:1", "", "API server a:1"},
			{opened(a), "a:1 b:1 c:1", "", "API server a:1"},
			{answered(a, sick), "a:1 b:1 c:1", "", "API server a:1"},
			{answered(a, sick), "b:1 c:1 a:1", "", "no API server works; b:1: not probed yet; c:1: not probed yet; a:1: 500: etcd failed"},
			{answered(b, dead), "c:1 a:1", "", "no API server works; c:1: not probed yet; a:1: 500: etcd failed; b:1: does not answer"},
			{answered(c, sick), "a:1 c:1", "", "no API server works; a:1: 500: etcd failed; c:1: 500: etcd failed; b:1: does not answer"},
			{answered(b, good), "b:1 a:1 c:1", "a:1", "API server b:1; a:1: 500: etcd failed; c:1: 500: etcd failed"},
		},
		"a connection that fails": {
			{answered(a, good), "a:1 b:1 c:1", "", "API server a:1"},
			{answered(c, good), "a:1 c:1 b:1", "", "API server a:1"},
			{opened(a), "a:1 c:1 b:1", "", "API server a:1"},
			{failed(b), "a:1 c:1 b:1", "", "API server a:1"},
			{failed(a), "c:1 a:1 b:1", "", "API server c:1; a:1: connect: connection refused"},
			{failed(a), "c:1 a:1 b:1", "", "API server c:1; a:1: connect: connection refused"},
			{answered(a, good), "a:1 c:1 b:1", "", "API server a:1"},
			{failed(a), "c:1 a:1 b:1", "", "API server c:1; a:1: connect: connection refused"},
			{answered(a, dead), "c:1 b:1", "a:1", "API server c:1; a:1: does not answer"},
		},
		"none": {
			{answered(a, dead), "b:1 c:1", "", "no API server works; b:1: not probed yet; c:1: not probed yet; a:1: does not answer"},
			{answered(b, dead), "c:1", "", "no API server works; c:1: not probed yet; a:1: does not answer; b:1: does not answer"},
			{answered(c, dead), "", "", "no API server works; a:1: does not answer; b:1: does not answer; c:1: does not answer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewState([]string{a, b, c}, "")
			for i, l := range lines {
				l.happens(&s)
				works, detail := s.Describe()
				if order := strings.Join(s.Order(), " "); order != l.order {
					t.Errorf("line %d: order %q, want %q", i, order, l.order)
				}
				if closed := strings.Join(s.Next(begin).Close, " "); closed != l.close {
					t.Errorf("line %d: closed %q, want %q", i, closed, l.close)
				}
				if detail != l.detail || works != strings.HasPrefix(l.detail, "API server") {
					t.Errorf("line %d: %t %q, want %q", i, works, detail, l.detail)
				}
			}
		})
	}
}

// TestProbeIntervals checks when each server is probed again.
func TestProbeIntervals(t *testing.T) {
	const a, b = "a:1", "b:1"
	good, dead := ProbeResult{Reachable: true}, ProbeResult{Problem: "does not answer"}
	s := NewState([]string{a, b}, "")
	if todo := s.Next(begin); len(todo.Probe) != 2 || !todo.Until.IsZero() {
		t.Fatalf("at the start: %+v", todo)
	}
	if todo := s.Next(begin.Add(time.Hour)); len(todo.Probe) != 0 {
		t.Fatalf("asked twice at a time: %+v", todo)
	}
	expect := func(what string, ofA, ofB ProbeResult, wantA, wantB time.Duration) {
		t.Helper()
		s.ProbeDone(a, ofA, begin)
		s.ProbeDone(b, ofB, begin)
		for i, want := range []time.Duration{wantA, wantB} {
			if got := s.pause(i); got != want {
				t.Errorf("%s: server %d is asked after %v, want %v", what, i, got, want)
			}
		}
		early, late := min(wantA, wantB), max(wantA, wantB)
		if todo := s.Next(begin.Add(early - 1)); len(todo.Probe) != 0 || !todo.Until.Equal(begin.Add(early)) {
			t.Errorf("%s: too early: %+v, want %v", what, todo, early)
		}
		if todo := s.Next(begin.Add(late)); len(todo.Probe) != 2 {
			t.Errorf("%s: at last: %+v", what, todo)
		}
	}
	expect("all work", good, good, probeInterval, standbyInterval)
	s.ConnOpened(b)
	expect("both are in use", good, good, probeInterval, probeInterval)
	s.ConnClosed(b)
	expect("one failed once", dead, good, retryInterval, standbyInterval)
	expect("and twice", dead, good, probeInterval, standbyInterval)
	expect("none works, one failed once", dead, dead, retryInterval, retryInterval)
	expect("none works", dead, dead, retryInterval, retryInterval)
	expect("one is back", good, dead, probeInterval, probeInterval)
	s.ProbeDone(a, good, begin)
	s.ConnectFailed(a, "refused")
	if todo := s.Next(begin); !slices.Equal(todo.Probe, []string{a}) {
		t.Errorf("a server that took no connection is not asked at once: %+v", todo)
	}
}

// TestOfflineAPI checks that the offline API server gets connections when no server has worked for
// a while after the start, also while a server answers that it is not ready, and never again after
// a server has worked.
func TestOfflineAPI(t *testing.T) {
	const a, b, stand = "192.0.2.10:6443", "192.0.2.11:6443", "127.0.0.1:1"
	s := NewState([]string{a, b}, stand)
	expect := func(at time.Duration, met bool, want ...string) {
		t.Helper()
		if todo := s.Next(begin.Add(at)); todo.FirstReady != met {
			t.Errorf("after %s met is %t", at, todo.FirstReady)
		}
		if got := s.Order(); !slices.Equal(got, want) {
			t.Errorf("after %s the order is %v, want %v", at, got, want)
		}
	}
	expect(0, false, a, b)
	s.ProbeDone(a, ProbeResult{Problem: "refused"}, begin)
	expect(offlineAfter, false, b) // the state of b is not known yet
	s.ProbeDone(b, ProbeResult{Reachable: true, Problem: "etcd"}, begin)
	expect(offlineAfter, false, stand)
	if works, detail := s.Describe(); works || !strings.HasPrefix(detail, "no API server works; the offline API server answers; ") {
		t.Errorf("%t, %q", works, detail)
	}
	s.ProbeDone(b, ProbeResult{}, begin.Add(offlineAfter))
	expect(offlineAfter, true, b)
	s.ProbeDone(b, ProbeResult{Problem: "refused"}, begin.Add(2*offlineAfter))
	s.ProbeDone(b, ProbeResult{Problem: "refused"}, begin.Add(2*offlineAfter))
	expect(3*offlineAfter, false)

	s = NewState([]string{a}, stand)
	s.ProbeDone(a, ProbeResult{Problem: "refused"}, begin)
	if todo := s.Next(begin); todo.Until.After(begin.Add(offlineAfter)) || todo.Until.IsZero() {
		t.Errorf("it is looked again at %s", todo.Until)
	}
	expect(offlineAfter-1, false)
	expect(offlineAfter, false, stand)
}
