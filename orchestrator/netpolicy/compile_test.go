package netpolicy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// nodes is the number of nodes. Node N has a pod range of each family: 10.244.N.0/24 and
// fd00:N::/64.
const nodes = 3

// emptyWorld returns the input of a node in a cluster without objects.
func emptyWorld(node int) Input {
	w := Input{
		Node: fmt.Sprint("n", node), Bridge: "cni0", Tunnel: "mesh0", Ranges: map[string][]netip.Prefix{},
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/24")},
	}
	for n := range nodes {
		w.Ranges[fmt.Sprint("n", n)] = []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", n)),
		}
	}
	return w
}

// worldOf returns the input of a node, with the Pods, Namespaces and NetworkPolicies of YAML
// documents.
func worldOf(t *testing.T, node int, documents string) Input {
	t.Helper()
	w := emptyWorld(node)
	for text := range strings.SplitSeq(documents, "\n---\n") {
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal([]byte(text), &kind))
		switch kind.Kind {
		case "Pod":
			var p corev1.Pod
			must(t, yaml.UnmarshalStrict([]byte(text), &p))
			w.Pods = append(w.Pods, &p)
		case "Namespace":
			var n corev1.Namespace
			must(t, yaml.UnmarshalStrict([]byte(text), &n))
			w.Namespaces = append(w.Namespaces, &n)
		case "NetworkPolicy":
			var n networkingv1.NetworkPolicy
			must(t, yaml.UnmarshalStrict([]byte(text), &n))
			w.Policies = append(w.Policies, &n)
		default:
			t.Fatalf("kind %q", kind.Kind)
		}
	}
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// compiled returns the table for the input. The test fails if Compile reports problems.
func compiled(t *testing.T, w Input) Table {
	t.Helper()
	table, problems := Compile(w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return table
}

// TestGolden compares the table for testdata/shop.yaml with a golden file.
func TestGolden(t *testing.T) {
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	got := compiled(t, worldOf(t, 1, string(documents))).String()
	golden.Assert(t, got, "shop.golden")
}

// TestRandomWorlds checks random connections in random clusters. The tables of the nodes have to
// give the same verdict as the oracle, which is the function allows. The tables permit a connection
// if both the table of the sender's node and the table of the receiver's node permit it.
func TestRandomWorlds(t *testing.T) {
	seen := map[bool]int{}
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(r)
		tables := map[string]Table{}
		for n := range nodes {
			w.Node = fmt.Sprint("n", n)
			tables[w.Node] = compiled(t, w)
			w := w
			w.Pods, w.Policies, w.Namespaces = shuffled(r, w.Pods), shuffled(r, w.Policies), shuffled(r, w.Namespaces)
			if again := compiled(t, w); again.String() != tables[w.Node].String() {
				t.Fatalf("seed %d: the table depends on the order of the objects", seed)
			}
		}
		for range 100 {
			p, protocol, on := randomPacket(r, w)
			want := allows(w, p.from, p.to, protocol, int32(p.port))
			got := true
			for _, node := range on {
				p.in, p.out = link(w, node, p.from), link(w, node, p.to)
				got = got && passes(tables[node], p)
			}
			if len(on) > 0 {
				seen[got]++
			}
			if got != want && len(on) > 0 {
				t.Fatalf("seed %d: %s to %s %s %d passes: %v, want %v\n%s", seed, p.from, p.to, protocol, p.port, got, want, tables[on[0]])
			}
		}
	}
	if seen[true] < 10000 || seen[false] < 10000 {
		t.Errorf("number of connections by verdict: %v, want at least 10000 that pass and 10000 that are dropped", seen)
	}
}

func shuffled[T any](r *rand.Rand, in []T) []T {
	out := slices.Clone(in)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// link returns the link on which a node receives packets from an address, and sends packets to it.
func link(w Input, node string, a netip.Addr) string {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case slices.ContainsFunc(w.Ranges[node], in):
		return w.Bridge
	case slices.ContainsFunc(w.Cluster, in):
		return w.Tunnel
	}
	return "eth0"
}

// randomPacket returns a packet, its protocol, and the nodes that filter the packet: those of the
// pods that send or receive it. The list of nodes is empty if there is no such pod, or if no two
// addresses of the same family were found.
func randomPacket(r *rand.Rand, w Input) (p packet, protocol corev1.Protocol, on []string) {
	v6 := r.IntN(2) == 1
	end := func() netip.Addr {
		if r.IntN(8) == 0 {
			if v6 {
				return netip.MustParseAddr(pick(r, "2001:db8::1", "2001:db8:1::1"))
			}
			return netip.MustParseAddr(pick(r, "192.0.2.1", "192.0.2.200", "198.51.100.7"))
		}
		for range 20 {
			pod := pick(r, w.Pods...)
			for _, ip := range pod.Status.PodIPs {
				if a := netip.MustParseAddr(ip.IP); a.Is6() == v6 && owner(w, a) != nil {
					return a
				}
			}
		}
		return netip.Addr{}
	}
	p.from, p.to = end(), end()
	if !p.from.IsValid() || !p.to.IsValid() {
		return p, "", nil
	}
	for _, a := range []netip.Addr{p.from, p.to} {
		if pod := owner(w, a); pod != nil && !slices.Contains(on, pod.Spec.NodeName) {
			on = append(on, pod.Spec.NodeName)
		}
	}
	protocol = pick(r, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	p.protocol = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}[protocol]
	p.port = pick(r, uint16(80), 81, 85, 443, 8080, 65535)
	return p, protocol, on
}

func randomLabels(r *rand.Rand) map[string]string {
	out := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if v := pick(r, "", "x", "y"); v != "" {
			out[key] = v
		}
	}
	return out
}

func randomSelector(r *rand.Rand) metav1.LabelSelector {
	switch r.IntN(4) {
	case 0:
		return metav1.LabelSelector{}
	case 1:
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: pick(r, "a", "b"), Operator: pick(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{pick(r, "x", "y")},
		}}}
	case 2:
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: pick(r, "a", "b"), Operator: pick(r, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}}}
	}
	return metav1.LabelSelector{MatchLabels: randomLabels(r)}
}

func randomWorld(r *rand.Rand) Input {
	w := emptyWorld(0)
	names := []string{"one", "two", "three"}
	for _, n := range names {
		w.Namespaces = append(w.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: randomLabels(r)}})
	}
	for i := range 12 {
		n := r.IntN(nodes)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: pick(r, names...), Labels: randomLabels(r)}}
		p.Spec.NodeName = fmt.Sprint("n", n)
		p.Status.Phase = pick(r, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded)
		four, six := fmt.Sprintf("10.244.%d.%d", n, i+2), fmt.Sprintf("fd00:%d::%d", n, i+2)
		switch r.IntN(8) {
		case 0:
		case 1:
			p.Status.PodIPs = []corev1.PodIP{{IP: four}}
		case 2:
			p.Spec.HostNetwork, p.Status.PodIPs = true, []corev1.PodIP{{IP: fmt.Sprint("192.0.2.", n+1)}}
		default:
			p.Status.PodIPs = []corev1.PodIP{{IP: four}, {IP: six}}
		}
		ports := []corev1.ContainerPort{
			{Name: "web", Protocol: corev1.ProtocolTCP, ContainerPort: pick(r, int32(80), 8080)},
			{Name: pick(r, "dns", "web"), Protocol: corev1.ProtocolUDP, ContainerPort: pick(r, int32(80), 443)},
		}
		p.Spec.Containers = []corev1.Container{{Name: "c", Ports: ports[:r.IntN(3)]}}
		w.Pods = append(w.Pods, p)
		// Half of the pods get a second Pod with the same addresses. The second Pod has ended or
		// uses the host's network, so it must have no effect.
		if r.IntN(2) == 0 {
			ghost := p.DeepCopy()
			ghost.Name, ghost.Namespace, ghost.Labels = fmt.Sprint("ghost", i), pick(r, names...), randomLabels(r)
			if ghost.Status.Phase = pick(r, corev1.PodRunning, corev1.PodFailed, corev1.PodSucceeded); ghost.Status.Phase == corev1.PodRunning {
				ghost.Spec.HostNetwork = true
			}
			w.Pods = append(w.Pods, ghost)
		}
	}
	for i := range r.IntN(7) {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: pick(r, names...)}}
		p.Spec.PodSelector = randomSelector(r)
		for range r.IntN(3) {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: randomPeers(r), Ports: randomPorts(r)})
		}
		for range r.IntN(3) {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: randomPeers(r), Ports: randomPorts(r)})
		}
		p.Spec.PolicyTypes = pick(r, nil, types("Ingress"), types("Egress"), types("Ingress", "Egress"))
		w.Policies = append(w.Policies, p)
	}
	return w
}

func types(of ...networkingv1.PolicyType) []networkingv1.PolicyType { return of }

func randomPeers(r *rand.Rand) (out []networkingv1.NetworkPolicyPeer) {
	for range r.IntN(4) {
		one, two := randomSelector(r), randomSelector(r)
		switch r.IntN(5) {
		case 0:
			out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &one})
		case 1:
			out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: &two})
		case 2:
			out = append(out, networkingv1.NetworkPolicyPeer{PodSelector: &one, NamespaceSelector: &two})
		case 3:
			block := networkingv1.IPBlock{CIDR: pick(r, "192.0.2.0/24", "192.0.0.0/8", "0.0.0.0/0", "10.244.1.0/24")}
			block.Except = pick(r, nil, []string{"192.0.2.128/25"}, []string{"192.0.2.0/25", "10.244.1.8/29"})
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &block})
		case 4:
			block := networkingv1.IPBlock{CIDR: pick(r, "2001:db8::/32", "::/0", "fd00:1::/64")}
			block.Except = pick(r, nil, []string{"2001:db8:1::/48"}, []string{"fd00:1::8/125"})
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &block})
		}
	}
	return out
}

func randomPorts(r *rand.Rand) (out []networkingv1.NetworkPolicyPort) {
	for range r.IntN(4) {
		p := networkingv1.NetworkPolicyPort{}
		if protocol := pick(r, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP); protocol != "" {
			p.Protocol = &protocol
		}
		port := pick(r, intstr.FromInt32(80), intstr.FromInt32(81), intstr.FromString("web"), intstr.FromString("dns"), intstr.FromInt32(0))
		if port.StrVal != "" || port.IntVal != 0 {
			p.Port = &port
		}
		if end := pick(r, int32(0), 85, 65535); end != 0 && port.IntVal != 0 {
			p.EndPort = &end
		}
		out = append(out, p)
	}
	return out
}

// TestGates checks that the node drops packets from or to a pod that it does not know yet, and
// packets from another link with the address of a pod as their source. It also checks that DenyAll
// drops all packets from and to pods.
func TestGates(t *testing.T) {
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	w := worldOf(t, 1, string(documents))
	table := compiled(t, w)
	a := netip.MustParseAddr
	// known is the address of a pod that no policy selects. unknown is the address of a pod that
	// the node does not know yet.
	known, unknown := a("10.244.1.20"), a("10.244.1.99")
	for _, c := range []struct {
		what string
		p    packet
		want bool
	}{
		{"a pod that no policy selects, to the outside", packet{from: known, to: a("192.0.2.1"), in: "cni0", out: "eth0"}, true},
		{"from the outside to a pod that no policy selects", packet{from: a("192.0.2.1"), to: known, in: "eth0", out: "cni0"}, true},
		{"an unknown pod, to the outside", packet{from: unknown, to: a("192.0.2.1"), in: "cni0", out: "eth0"}, false},
		{"from the outside to an unknown pod", packet{from: a("192.0.2.1"), to: unknown, in: "eth0", out: "cni0"}, false},
		{"from a known pod to an unknown pod", packet{from: known, to: unknown, in: "cni0", out: "cni0"}, false},
		{"an unknown pod, in an established connection", packet{from: unknown, to: a("192.0.2.1"), in: "cni0", out: "eth0", established: true}, true},
		{"a pod, to a link-local address", packet{from: a("fe80::1"), to: a("fe80::2"), in: "cni0", out: "cni0"}, false},
		{"a neighbor solicitation of a pod", packet{from: a("fe80::1"), to: a("ff02::1:ff00:2"), in: "cni0", out: "cni0", neighbour: true}, true},
		{"a neighbor solicitation of an unknown pod, routed to the outside", packet{from: unknown, to: a("192.0.2.1"), in: "cni0", out: "eth0", neighbour: true}, false},
		{"a packet from outside with the pod's own address as its source", packet{from: known, to: known, in: "eth0", out: "cni0"}, false},
		{"a pod to itself, through a Service", packet{from: known, to: known, in: "cni0", out: "cni0"}, true},
		{"a pod of another node, through the tunnel", packet{from: a("10.244.2.30"), to: known, in: "mesh0", out: "cni0"}, true},
		{"a packet from outside with the address of a pod as its source", packet{from: a("10.244.2.30"), to: known, in: "eth0", out: "cni0"}, false},
		{"a packet neither from nor to a pod", packet{from: a("192.0.2.1"), to: a("198.51.100.1"), in: "eth0", out: "eth1"}, true},
	} {
		if got := passes(table, c.p); got != c.want {
			t.Errorf("%s: passes: %v, want %v", c.what, got, c.want)
		}
	}
	w.Policies = nil
	if table := compiled(t, w); len(table.Sets)+len(table.Chains) > 0 {
		t.Errorf("the table without policies is\n%s", table)
	}
	for _, p := range []packet{
		{from: known, to: a("192.0.2.1"), in: "cni0", out: "eth0"}, {from: a("192.0.2.1"), to: known, in: "eth0", out: "cni0"},
	} {
		if passes(DenyAll(w), p) {
			t.Errorf("DenyAll: a packet from %s to %s passes", p.from, p.to)
		}
	}
}

// TestProblems checks policies that the API server would have rejected. Compile must report a
// problem for each such policy, and the policy must allow nothing.
func TestProblems(t *testing.T) {
	const pod = `
kind: Pod
metadata: {name: a, namespace: one, labels: {a: x}}
spec: {nodeName: n0, containers: []}
status: {phase: Running, podIPs: [{ip: 10.244.0.2}, {ip: 10.244.1.2}]}
---
kind: NetworkPolicy
metadata: {name: p, namespace: one}
spec: {podSelector: {}, ingress: [%s]}`
	const like = `{matchExpressions: [{key: a, operator: Like}]}`
	for rule, want := range map[string]string{
		`{from: [{ipBlock: {cidr: 10.0.0.0}}]}`:                `ipBlock: cannot use cidr: netip.ParsePrefix("10.0.0.0"): no '/'`,
		`{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}`: `ipBlock: cannot use except: netip.ParsePrefix("x"): no '/'`,
		`{from: [{ipBlock: {cidr: "::ffff:10.0.0.0/104"}}]}`:   `ipBlock: cannot use cidr ::ffff:10.0.0.0/104: it is an IPv4 range; write it in IPv4 form`,
		`{from: [{}]}`:                                `a peer is empty; it needs a podSelector, a namespaceSelector or an ipBlock`,
		`{ports: [{protocol: ICMP}]}`:                 `protocol ICMP: is not known; use TCP, UDP or SCTP`,
		`{from: [{podSelector: ` + like + `}]}`:       `podSelector: cannot use: "Like" is not a valid label selector operator`,
		`{from: [{namespaceSelector: ` + like + `}]}`: `namespaceSelector: cannot use: "Like" is not a valid label selector operator`,
	} {
		want = "ingress/one/p/0: " + want
		table, problems := Compile(worldOf(t, 0, fmt.Sprintf(pod, rule)))
		if len(problems) != 1 || problems[0].Error() != want {
			t.Errorf("%s: %v, want %s", rule, problems, want)
		}
		p := packet{from: netip.MustParseAddr("10.0.0.1"), to: netip.MustParseAddr("10.244.0.2"), protocol: 6, port: 80, in: "eth0", out: "cni0"}
		if passes(table, p) {
			t.Errorf("%s: the packet passes, although the policy is invalid", rule)
		}
		if strings.Contains(table.String(), "10.244.1.2") {
			t.Errorf("the table has an address of a pod that is in the range of another node:\n%s", table)
		}
	}
	if long := name(ingress, strings.Repeat("n", 63), strings.Repeat("p", 253)); len(long) > maxNameLen {
		t.Errorf("a name has %d bytes, want at most maxNameLen", len(long))
	}
}

// TestBounds checks that duplicates of peers and ports do not change the table. It also checks that
// policies of a namespace beyond its limit are rejected, and that the limit does not affect other
// namespaces.
func TestBounds(t *testing.T) {
	const world = `
kind: Pod
metadata: {name: a, namespace: one, labels: {a: x}}
spec: {nodeName: n0, containers: []}
status: {phase: Running, podIPs: [{ip: 10.244.0.2}]}
---
kind: NetworkPolicy
metadata: {name: p, namespace: one}
spec: {podSelector: {}, ingress: [{from: [%s], ports: [%s]}]}`
	compile := func(from, port string) string {
		table, problems := Compile(worldOf(t, 0, fmt.Sprintf(world, from, port)))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return table.String()
	}
	once := compile("{podSelector: {}}", "{port: 80}, {port: http}, {}")
	if got := compile("{podSelector: {}}, {podSelector: {}}, {podSelector: {matchLabels: {a: x}}}", "{port: 80}, {port: http}, {port: 80}, {}, {port: http}, {}"); got != once {
		t.Errorf("with duplicates:\n%s\nwithout:\n%s", got, once)
	}
	c := compiler{spent: map[string]int{}}
	for i, step := range []struct {
		namespace string
		costs     int
		ok        bool
	}{{"one", maxNamespaceItems - 1, true}, {"one", 1, true}, {"one", 1, false}, {"one", 1, false}, {"two", 1, true}, {"three", maxNamespaceItems + 1, false}} {
		if ok := c.affordable(rule{name: "r", namespace: step.namespace}, step.costs); ok != step.ok {
			t.Errorf("step %d: affordable: %t, want %t", i, ok, step.ok)
		}
	}
	if len(c.problems) != 2 || !strings.Contains(c.problems[0].Error(), "the policies of namespace one have more than 524288 peers and ports on this node") {
		t.Errorf("problems: %v", c.problems)
	}
}

// TestTooMuch checks the limit on the size of all policies together. Beyond this limit, the
// policies of the namespace with the largest policies allow nothing. All other policies are
// enforced.
func TestTooMuch(t *testing.T) {
	const world = `
kind: Pod
metadata: {name: a, namespace: greedy}
spec: {nodeName: n0, containers: []}
status: {phase: Running, podIPs: [{ip: 10.244.0.2}]}
---
kind: Pod
metadata: {name: b, namespace: modest}
spec: {nodeName: n0, containers: []}
status: {phase: Running, podIPs: [{ip: 10.244.0.3}]}
---
kind: NetworkPolicy
metadata: {name: p, namespace: modest}
spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}`
	w := worldOf(t, 0, world)
	for n := range 3 {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("all", n), Namespace: "greedy"}}
		policy.Spec.PolicyTypes = types(networkingv1.PolicyTypeIngress)
		var rule networkingv1.NetworkPolicyIngressRule
		for port := range 50000 {
			number := intstr.FromInt(port + 1)
			rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: &number})
		}
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{rule}
		w.Policies = append(w.Policies, policy)
	}
	table, problems := Compile(w)
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "those of namespace greedy are the largest, 73 MiB: its pods here are cut off") {
		t.Errorf("problems: %v", problems)
	}
	outside := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		to   string
		port uint16
		want bool
	}{{"10.244.0.2", 80, false}, {"10.244.0.3", 80, true}, {"10.244.0.3", 81, false}} {
		if got := passes(table, packet{from: outside, to: netip.MustParseAddr(c.to), protocol: tcp, port: c.port, in: "eth0", out: "cni0"}); got != c.want {
			t.Errorf("to %s port %d: passes: %v, want %v", c.to, c.port, got, c.want)
		}
	}
	// No policy restricts the egress of the namespace greedy, so egress stays permitted. After one
	// of its policies is deleted, the others fit, and are enforced again.
	if !passes(table, packet{from: netip.MustParseAddr("10.244.0.2"), to: outside, protocol: tcp, port: 80, in: "cni0", out: "eth0"}) {
		t.Error("egress is dropped although no policy restricts it")
	}
	w.Policies = w.Policies[:2]
	table, problems = Compile(w)
	if len(problems) > 0 || !passes(table, packet{from: outside, to: netip.MustParseAddr("10.244.0.2"), protocol: tcp, port: 80, in: "eth0", out: "cni0"}) {
		t.Errorf("the policies are not enforced, although they fit: %v", problems)
	}
}
