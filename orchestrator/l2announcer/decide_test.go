package l2announcer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// vip4 and vip6 are addresses of Services. other is the MAC of a machine that is not a node.
var (
	vip4, vip6 = netip.MustParseAddr("192.0.2.70"), netip.MustParseAddr("2001:db8::70")
	other      = neighbor.MAC{2, 0, 0, 0, 0, 3}
)

func addrs(words ...string) []netip.Addr {
	var all []netip.Addr
	for _, w := range words {
		all = append(all, netip.MustParseAddr(w))
	}
	return all
}

// many returns n consecutive IPv4 addresses, beginning with vip4.
func many(n int) []netip.Addr {
	all := []netip.Addr{vip4}
	for len(all) < n {
		all = append(all, all[len(all)-1].Next())
	}
	return all
}

// owners runs the election of each node, and returns the name of the node that wins each address.
// It fails the test if two nodes win the same address.
func owners(t *testing.T, nodes []Node, services []Service) map[netip.Addr]string {
	t.Helper()
	all := map[netip.Addr]string{}
	for _, n := range nodes {
		for _, a := range Elect(n.Name, nodes, services) {
			if all[a] != "" {
				t.Fatalf("%s: %s and %s answer", a, all[a], n.Name)
			}
			all[a] = n.Name
		}
	}
	return all
}

func TestElect(t *testing.T) {
	nodes := []Node{
		{Name: "a", Ready: true}, {Name: "b", Ready: true}, {Name: "c"}, {Name: "d", Ready: true, Excluded: true}, {Name: "e", Ready: true, Unheard: true},
	}
	for name, c := range map[string]struct {
		service Service
		want    []string // permitted winners; "" means that no node wins
	}{
		"any":                                    {Service{}, []string{"a", "b"}},
		"local":                                  {Service{Local: true, Endpoints: []string{"b", "c", "d", "e"}}, []string{"b"}},
		"local, without a candidate":             {Service{Local: true, Endpoints: []string{"c", "d", "e"}}, []string{""}},
		"local, without endpoints":               {Service{Local: true}, []string{""}},
		"not local, so endpoints have no effect": {Service{Endpoints: []string{"c"}}, []string{"a", "b"}},
		"local, on an unknown node":              {Service{Local: true, Endpoints: []string{"gone"}}, []string{""}},
	} {
		for _, a := range many(50) {
			c.service.Addresses = []netip.Addr{a}
			if got := owners(t, nodes, []Service{c.service})[a]; !slices.Contains(c.want, got) {
				t.Errorf("%s: %s is answered by %q, want one of %q", name, a, got, c.want)
			}
		}
	}
	twice := []Service{{Addresses: addrs("192.0.2.70"), Local: true, Endpoints: []string{"a"}}, {Addresses: addrs("192.0.2.70"), Local: true, Endpoints: []string{"b"}}}
	if got := owners(t, nodes, twice)[vip4]; got != "a" {
		t.Errorf("node %q answers for an address of two Services, want a", got)
	}
}

// TestElectMoves checks that each node gets a fair number of addresses, and that only the addresses
// of a node move when this node becomes unready.
func TestElectMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var nodes []Node
		for i := range 2 + r.IntN(6) {
			nodes = append(nodes, Node{Name: fmt.Sprintf("node-%d-%d", i, r.IntN(1000)), Ready: true})
		}
		services := []Service{{Addresses: many(400)}}
		before := owners(t, nodes, services)
		share := map[string]int{}
		for _, n := range before {
			share[n]++
		}
		for _, n := range nodes {
			if fair := 400 / len(nodes); share[n.Name] < fair/2 || share[n.Name] > 2*fair {
				t.Errorf("%s has %d of 400 addresses among %d nodes", n.Name, share[n.Name], len(nodes))
			}
		}
		shuffled := slices.Clone(nodes)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if !reflect.DeepEqual(owners(t, shuffled, services), before) {
			t.Error("the result depends on the order of the Nodes")
		}
		gone := r.IntN(len(nodes))
		nodes[gone].Ready = false
		for a, n := range owners(t, nodes, services) {
			if before[a] != n && before[a] != nodes[gone].Name {
				t.Errorf("%s moved from %s to %s, although only %s became unready", a, before[a], n, nodes[gone].Name)
			}
		}
	}
}

// TestReannounce checks that, after a change of the link, a node announces all addresses again that
// it holds, but not an address that it has yielded.
func TestReannounce(t *testing.T) {
	now := time.Unix(1000, 0)
	c := claims{vip4: {announced: announcements, next: now}, vip6: {yielded: now}}.reannounce()
	if _, do := c.step(claimInput{now: now, won: []netip.Addr{vip4, vip6}, cutOff: true}); !slices.Equal(do.announce, []netip.Addr{vip4}) {
		t.Errorf("after a change of the link, announces %v", do.announce)
	}
}

func words(addresses []netip.Addr) string {
	var all []string
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

// TestCutOff simulates a node that loses the API server at a random time. The node detects this at
// least 5 seconds before the control plane marks its Node as not ready. While the node renews its
// Lease in time, it does not consider itself cut off.
func TestCutOff(t *testing.T) {
	const grace = 50 * time.Second // node-monitor-grace-period
	r := rand.New(rand.NewPCG(3, 4))
	for range 1000 {
		start := time.Unix(1000, 0)
		renewal, poll := time.Duration(r.Int64N(int64(10*time.Second))), time.Duration(r.Int64N(int64(pollInterval)))
		lost := 60*time.Second + time.Duration(r.Int64N(int64(time.Minute)))
		l := lease{}.renewed("0", start)
		version, last, detected := 0, start, time.Duration(0)
		for at := time.Duration(0); detected == 0; at += 100 * time.Millisecond {
			if at < lost && at >= renewal {
				version, last, renewal = version+1, start.Add(at), renewal+10*time.Second
			}
			if at < lost && at >= poll {
				l, poll = l.renewed(fmt.Sprint(version), start.Add(at)), poll+pollInterval
			}
			if l.cutOff(start.Add(at)) {
				if at < lost {
					t.Fatalf("the node considers itself cut off at %s, but the API server answers until %s", at, lost)
				}
				detected = at
			}
		}
		if age := start.Add(detected).Sub(last); age > grace-5*time.Second {
			t.Fatalf("the node detects %s after the last renewal that it is cut off; the control plane marks its Node after %s", age, grace)
		}
	}
}

func TestReadService(t *testing.T) {
	yes, no, here, there := true, false, "here", "there"
	service := func(policy corev1.ServiceExternalTrafficPolicy) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: policy},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
				{IP: "192.0.2.70"}, {IP: "192.0.2.1"}, {Hostname: "example.com"}, {IP: "2001:db8::70"},
			}}},
		}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Endpoints: []discoveryv1.Endpoint{
			{NodeName: &there}, {NodeName: &here, Conditions: discoveryv1.EndpointConditions{Ready: &no}}, {Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
			{NodeName: &there, Conditions: discoveryv1.EndpointConditions{Ready: &yes}},
		},
	}
	pools := []nodespec.Pool{{Name: "a", Ranges: []nodespec.Range{{First: vip4, Last: vip4.Next()}, {First: vip6, Last: vip6.Next()}}}}
	for policy, want := range map[corev1.ServiceExternalTrafficPolicy]Service{
		corev1.ServiceExternalTrafficPolicyCluster: {Addresses: []netip.Addr{vip4, vip6}},
		corev1.ServiceExternalTrafficPolicyLocal:   {Addresses: []netip.Addr{vip4, vip6}, Local: true, Endpoints: []string{"there"}},
	} {
		slimService, _ := trim(service(policy))
		slimSlice, _ := trim(slice)
		if got := readService(slimService.(*corev1.Service), []any{slimSlice}, pools); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", policy, got, want)
		}
		if !loadbalancer.IsManaged(slimService.(*corev1.Service)) || serviceOf(slimSlice) != "default/s" {
			t.Errorf("%s: a field that the election needs is missing", policy)
		}
	}
	// A terminating endpoint that still serves is used only if the Service has no ready endpoint.
	local := service(corev1.ServiceExternalTrafficPolicyLocal)
	ends := discoveryv1.Endpoint{NodeName: &here, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}}
	gone := discoveryv1.Endpoint{NodeName: &there, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}}
	slice.Endpoints = append(slice.Endpoints, ends)
	if got := readService(local, []any{slice}, pools).Endpoints; !slices.Equal(got, []string{"there"}) {
		t.Errorf("a terminating endpoint beside a ready endpoint: %v", got)
	}
	slice.Endpoints = []discoveryv1.Endpoint{gone, ends, ends}
	if got := readService(local, []any{slice}, pools).Endpoints; !slices.Equal(got, []string{"here"}) {
		t.Errorf("a terminating endpoint that is the last to serve: %v", got)
	}
}

func TestReadNode(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelNodeExcludeBalancers: ""}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}, Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.11"}, {Type: corev1.NodeInternalIP, Address: "?"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::11"},
		}},
	}
	slim, _ := trim(node)
	if got, want := readNode(slim.(*corev1.Node)), (Node{Name: "n", Excluded: true, Addresses: addrs("192.0.2.11", "2001:db8::11")}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	node.Labels, node.Status.Conditions[0].Status, node.Status.Addresses = nil, corev1.ConditionTrue, nil
	if got, want := readNode(node), (Node{Name: "n", Ready: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestComponents checks that a configuration without pools has no component of this package.
func TestComponents(t *testing.T) {
	if got := Components(nodespec.Spec{}, dirs.System()); got != nil {
		t.Errorf("%v", got)
	}
}
