package podnetwork

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/dirs"
)

// keyOf returns a public key for node n, which readers of a golden file can recognize.
func keyOf(n byte) wgtypes.Key { return wgtypes.Key{0: n, 31: n} }

// others returns the three nodes of a cluster with IPv4 and IPv6, in the order 2, 3, 1. The mesh of
// the test is that of node 3.
func others() []Node {
	node := func(n int) Node {
		return Node{
			Name: fmt.Sprintf("node-%d", n), Since: time.Unix(int64(n), 0), Key: keyOf(byte(n)).String(),
			Addresses: addresses(fmt.Sprintf("192.0.2.%d", n), fmt.Sprintf("2001:db8::%d", n)),
			Ranges:    prefixes(fmt.Sprintf("10.244.%d.0/24", n), fmt.Sprintf("fd00:10:244:%d::/64", n)),
		}
	}
	return []Node{node(2), node(3), node(1)}
}

func (m Mesh) text() string {
	var b strings.Builder
	for _, p := range m.Pieces {
		fmt.Fprintln(&b, p)
	}
	fmt.Fprintf(&b, "%d nodes reached\n", m.Nodes)
	for _, p := range m.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	return b.String()
}

// TestMesh compares the planned kernel objects with a golden file. For each encapsulation, it plans
// a cluster of three nodes and a cluster of a single node. It also plans clusters in which node 2
// is invalid; the golden file has the problem that results.
func TestMesh(t *testing.T) {
	var b strings.Builder
	show := func(title string, encapsulation string, nodes []Node) Mesh {
		spec, ranges := dual()
		spec.Network.Encapsulation = encapsulation
		m := NewMesh(spec, Self{Ranges: ranges, MTU: 1420, Key: keyOf(3)}, nodes)
		fmt.Fprintf(&b, "== %s\n%s", title, m.text())
		return m
	}
	for _, e := range []string{wireguard, vxlan, plain} {
		show(e, e, others())
		show(e+", alone", e, others()[1:2])
	}
	for _, c := range []struct {
		title, encapsulation string
		change               func(second *Node)
	}{
		{"no key yet", wireguard, func(n *Node) { n.Key = "" }},
		{"an invalid key", wireguard, func(n *Node) { n.Key = "AAAA" }},
		{"a key of zeros", wireguard, func(n *Node) { n.Key = wgtypes.Key{}.String() }},
		{"the key of a node that was there before", wireguard, func(n *Node) { n.Key = keyOf(1).String() }},
		{"our own key", wireguard, func(n *Node) { n.Key = keyOf(3).String() }},
		{"no pod range yet", wireguard, func(n *Node) { n.Ranges = nil }},
		{"the range of a node that was there before", wireguard, func(n *Node) { n.Ranges = prefixes("10.244.1.0/24") }},
		{"our own range", vxlan, func(n *Node) { n.Ranges = prefixes("10.244.3.0/24") }},
		{"a range that holds others", vxlan, func(n *Node) { n.Ranges = prefixes("10.244.0.0/17") }},
		{"a range in another's", plain, func(n *Node) { n.Ranges = prefixes("10.244.2.128/25") }},
		{"the range of services", plain, func(n *Node) { n.Ranges = prefixes("10.96.0.0/24") }},
		{"all addresses", plain, func(n *Node) { n.Ranges = prefixes("0.0.0.0/0") }},
		{"an address of one family", wireguard, func(n *Node) { n.Addresses = addresses("2001:db8::2") }},
		{"an address of the other family", vxlan, func(n *Node) { n.Addresses = addresses("2001:db8::2") }},
		{"an address for half of its pods", plain, func(n *Node) { n.Addresses = addresses("192.0.2.2") }},
		{"no address", wireguard, func(n *Node) { n.Addresses = nil }},
	} {
		nodes := others()
		c.change(&nodes[0])
		before := b.Len()
		m := show(c.encapsulation+": "+c.title, c.encapsulation, nodes)
		if c.title != "an address of one family" {
			// Node 1 is connected, although node 2 is invalid.
			if m.Nodes != 1 || len(m.Problems) != 1 || !strings.Contains(m.text(), "10.244.1.0/24") {
				t.Errorf("%s: want one reached node and one problem:\n%s", c.title, b.String()[before:])
			}
		}
	}
	golden.Assert(t, b.String(), "mesh.golden")
}

// TestMeshDoesNotDependOnOrder checks that the order of the Nodes does not change the plan, because
// a watch delivers Nodes in any order.
func TestMeshDoesNotDependOnOrder(t *testing.T) {
	spec, ranges := dual()
	self := Self{Ranges: ranges, MTU: 1420, Key: keyOf(3)}
	nodes := others()
	want := NewMesh(spec, self, nodes).text()
	slices.Reverse(nodes)
	if got := NewMesh(spec, self, nodes).text(); got != want {
		t.Errorf("in the reverse order:\n%s\nwant:\n%s", got, want)
	}
}

// TestDiff compares the results of Diff with a golden file, for example after a node has left,
// after a node has changed its address or key, and after a change of the encapsulation. The
// difference of two equal plans must be empty.
func TestDiff(t *testing.T) {
	spec, ranges := dual()
	self := Self{Ranges: ranges, MTU: 1420, Key: keyOf(3)}
	plan := func(encapsulation string, change func([]Node) []Node) []KernelObject {
		s := spec
		s.Network.Encapsulation = encapsulation
		return NewMesh(s, self, change(others())).Pieces
	}
	same := func(n []Node) []Node { return n }
	var b strings.Builder
	for _, c := range []struct {
		title      string
		have, want []KernelObject
	}{
		{"nothing changes", plan(wireguard, same), plan(wireguard, same)},
		{"the first other node comes", plan(wireguard, func(n []Node) []Node { return n[1:2] }), plan(wireguard, func(n []Node) []Node { return n[1:] })},
		{"a node leaves", plan(wireguard, same), plan(wireguard, func(n []Node) []Node { return n[1:] })},
		{"all others leave", plan(wireguard, same), plan(wireguard, func(n []Node) []Node { return n[1:2] })},
		{"a node has another address", plan(wireguard, same), plan(wireguard, func(n []Node) []Node { n[0].Addresses = addresses("192.0.2.99"); return n })},
		{"a node has another key", plan(wireguard, same), plan(wireguard, func(n []Node) []Node { n[0].Key = keyOf(9).String(); return n })},
		{"a node leaves VXLAN", plan(vxlan, same), plan(vxlan, func(n []Node) []Node { return n[1:] })},
		{"the clock went back", aged(plan(wireguard, same)), plan(wireguard, same)},
		{"from WireGuard to routes", plan(wireguard, same), plan(plain, same)},
	} {
		gone, set := Diff(c.have, c.want)
		fmt.Fprintf(&b, "== %s\n", c.title)
		for _, p := range gone {
			fmt.Fprintf(&b, "remove %s\n", p)
		}
		for _, p := range set {
			fmt.Fprintf(&b, "set %s\n", p)
		}
		if gone, set := Diff(c.want, c.want); len(gone)+len(set) > 0 {
			t.Errorf("%s: the difference of equal plans is not empty: %v and %v", c.title, gone, set)
		}
	}
	golden.Assert(t, b.String(), "diff.golden")
}

// aged sets the field Deferred of the first peer, and returns the objects.
func aged(pieces []KernelObject) []KernelObject {
	i := slices.IndexFunc(pieces, func(p KernelObject) bool { _, is := p.(Peer); return is })
	peer := pieces[i].(Peer)
	peer.Deferred = true
	pieces[i] = peer
	return pieces
}

// TestHandshakes checks that a peer is stuck if the time of its last handshake is in the future and
// has not changed for minutes. The peer is not stuck if newer handshakes follow.
func TestHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, peer, last := handshakes{}, keyOf(1), time.Now().Add(8*time.Hour)
		for range 4 {
			if h.stuck(peer, last, time.Now()) {
				t.Fatal("the peer is stuck before minutes have passed")
			}
			time.Sleep(time.Minute)
		}
		// There is another handshake in the future, because the clock of the peer is still ahead.
		last = last.Add(time.Second)
		for range 5 {
			if h.stuck(peer, last, time.Now()) {
				t.Fatal("the peer is stuck shortly after a new handshake")
			}
			time.Sleep(time.Minute)
		}
		if !h.stuck(peer, last, time.Now()) {
			t.Error("the peer is not stuck minutes after the last handshake")
		}
		if h.stuck(peer, time.Now().Add(-time.Second), time.Now()) || len(h) != 0 {
			t.Errorf("the peer is stuck after a handshake in the past, or is still in the list: %v", h)
		}
		if h.stuck(peer, time.Time{}, time.Now()) || handshakes(nil).stuck(peer, last, time.Now()) {
			t.Error("a peer without a handshake is stuck")
		}
	})
}

// TestNodeOf checks the fields that nodeOf reads: the internal addresses of the status, the pod
// ranges of the spec, and the annotation with the key.
func TestNodeOf(t *testing.T) {
	since := time.Unix(1700000000, 0)
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(since), Annotations: map[string]string{
			KeyAnnotation: "k", "network.orlop.dev/pod-ranges": "0.0.0.0/0",
		}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "192.0.2.7"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.8"},
			{Type: corev1.NodeInternalIP, Address: "nonsense"},
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
			{Type: corev1.NodeInternalIP, Address: "fe80::1%eth0"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.9"},
		}},
	}
	n, err := nodeOf(object)
	want := Node{Name: "n", Since: since, Addresses: addresses("192.0.2.9"), Ranges: prefixes("10.244.1.0/24"), Key: "k"}
	if err != nil || fmt.Sprint(n) != fmt.Sprint(want) {
		t.Errorf("%v, %v; want %v", n, err, want)
	}
	object.Spec.PodCIDRs = []string{"x"}
	if _, err := nodeOf(object); err == nil {
		t.Error("nodeOf accepts an invalid pod range")
	}
}

// TestKey checks that privateKey creates the key once, and replaces a damaged key and the key of
// another node.
func TestKey(t *testing.T) {
	dir := t.TempDir() + "/podnetwork"
	first, err := privateKey(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := privateKey(dir, "n1")
	if err != nil || second != first {
		t.Errorf("the second call returns another key: %v", err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, dir + "/wireguard.key": 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info, err, want)
		}
	}
	if err := os.WriteFile(dir+"/wireguard.key", []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	third, err := privateKey(dir, "n1")
	if err != nil || third == first || third == (wgtypes.Key{}) {
		t.Errorf("a damaged key is not replaced: %v", err)
	}
	fourth, err := privateKey(dir, "n2")
	if err != nil || fourth == third {
		t.Errorf("the key is not replaced after the node got another name: %v", err)
	}
}

// TestDescribe checks the status text about other nodes. In a cluster of a single node, it is
// empty.
func TestDescribe(t *testing.T) {
	for want, c := range map[string]struct {
		others, reached int
		problems        []string
	}{
		"": {},
		"; 2 of 2 other nodes reached, encapsulation wireguard":                               {2, 2, nil},
		"; 0 of 1 other nodes reached, encapsulation wireguard; a: no":                        {1, 0, []string{"a: no"}},
		"; 1 of 6 other nodes reached, encapsulation wireguard; a; b; c; and 2 more problems": {6, 1, []string{"a", "b", "c", "d", "e"}},
	} {
		if got := describe(wireguard, c.others, c.reached, c.problems); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestUpdateWithoutNode checks that update changes nothing while the Node object of its own node is
// missing, because it does not know the reason.
func TestUpdateWithoutNode(t *testing.T) {
	spec, ranges := single()
	m := mesh{spec: spec, dirs: dirs.In(t.TempDir()), publish: func(context.Context, string) error {
		t.Error("a key was published")
		return nil
	}}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.9.0/24"}}}
	if got := m.update(context.Background(), ranges, []any{other}); got != "" {
		t.Errorf("status text %q, want none", got)
	}
}

// TestDiffOfTwoRoutes checks Diff for several existing routes to one network. If the wanted route
// is one of them, Diff removes the others. If it is not, Diff removes none of them, because
// putRoute replaces them when it sets the wanted route.
func TestDiffOfTwoRoutes(t *testing.T) {
	via := func(a string) Route {
		return Route{To: netip.MustParsePrefix("10.244.7.0/24"), Via: netip.MustParseAddr(a)}
	}
	for _, c := range []struct {
		name            string
		have, gone, set []KernelObject
	}{
		{"the wanted route before another", []KernelObject{via("192.0.2.1"), via("192.0.2.2")}, []KernelObject{via("192.0.2.2")}, nil},
		{"the wanted route after another", []KernelObject{via("192.0.2.2"), via("192.0.2.1")}, []KernelObject{via("192.0.2.2")}, nil},
		{"one other route", []KernelObject{via("192.0.2.2")}, nil, []KernelObject{via("192.0.2.1")}},
		{"two other routes", []KernelObject{via("192.0.2.2"), via("192.0.2.3")}, nil, []KernelObject{via("192.0.2.1")}},
	} {
		gone, set := Diff(c.have, []KernelObject{via("192.0.2.1")})
		if !slices.Equal(gone, c.gone) || !slices.Equal(set, c.set) {
			t.Errorf("%s: removes %v and sets %v, want %v and %v", c.name, gone, set, c.gone, c.set)
		}
	}
}
