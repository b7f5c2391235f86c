package podnetwork

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	testclient "k8s.io/client-go/testing"
	"sigs.k8s.io/knftables"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func prefixes(words ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, w := range words {
		out = append(out, netip.MustParsePrefix(w))
	}
	return out
}

func addresses(words ...string) []netip.Addr {
	var out []netip.Addr
	for _, w := range words {
		out = append(out, netip.MustParseAddr(w))
	}
	return out
}

// single returns the specification of a node with IPv4, and its pod ranges.
func single() (nodespec.Spec, []netip.Prefix) {
	return nodespec.Spec{
		Node:    nodespec.Node{Name: "node-3", IPs: addresses("192.0.2.3")},
		Network: nodespec.Network{Encapsulation: wireguard, PodCIDRs: prefixes("10.244.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/12")},
	}, prefixes("10.244.3.0/24")
}

// dual returns the specification of a node with IPv4 and IPv6, and its pod ranges.
func dual() (nodespec.Spec, []netip.Prefix) {
	return nodespec.Spec{
		Node: nodespec.Node{Name: "node-3", IPs: addresses("192.0.2.3", "2001:db8::3")},
		Network: nodespec.Network{
			Encapsulation: wireguard,
			PodCIDRs:      prefixes("10.244.0.0/16", "fd00:10:244::/56"),
			ServiceCIDRs:  prefixes("10.96.0.0/12", "fd00:10:96::/112"),
		},
	}, prefixes("10.244.3.0/24", "fd00:10:244:3::/64")
}

// TestPlan compares the whole plan for the pod ranges of a node with golden files: addresses,
// routes, the CNI configuration, the nftables rules in the (fake) kernel, and the endpoints of the
// cluster DNS.
func TestPlan(t *testing.T) {
	tunnel := func() (nodespec.Spec, []netip.Prefix) {
		spec, ranges := single()
		spec.Network.Encapsulation = vxlan
		return spec, ranges
	}
	for name, make := range map[string]func() (nodespec.Spec, []netip.Prefix){"single": single, "dual": dual, "vxlan": tunnel} {
		spec, ranges := make()
		plan, err := NewPlan(spec, dirs.System(), ranges, 1500)
		if err != nil {
			t.Fatal(err)
		}
		fake := knftables.NewFake(knftables.InetFamily, table)
		for range 2 { // the second time changes nothing
			if err := filter(context.Background(), fake, plan); err != nil {
				t.Fatal(err)
			}
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u-1"}}
		endpoints, err := yaml.Marshal(dnsSlices(node, plan.Addresses()))
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, g := range plan.Gateways {
			b.WriteString("address " + g.String() + "\n")
		}
		for _, r := range plan.Routes {
			b.WriteString("route " + r.String() + "\n")
		}
		b.WriteString(plan.Conflist + fake.Dump() + string(endpoints))
		golden.Assert(t, b.String(), name+".golden")
	}
}

// TestPlanRejectsSmallRange checks that a range without room for a pod is an error.
func TestPlanRejectsSmallRange(t *testing.T) {
	spec, _ := single()
	for _, r := range []string{"10.244.0.0/31", "10.244.0.0/32"} {
		if _, err := NewPlan(spec, dirs.System(), prefixes(r), 1500); err == nil {
			t.Errorf("NewPlan accepts the pod range %s", r)
		}
	}
}

// TestMTU checks the MTU of pods for a link with an MTU of 1500 bytes, on a node with IPv4 only and
// on a node with both families.
func TestMTU(t *testing.T) {
	only4, ranges := single()
	both, _ := dual()
	for _, c := range []struct {
		encapsulation string
		only4, both   int
	}{{wireguard, 1440, 1420}, {vxlan, 1450, 1430}, {plain, 1500, 1500}} {
		for spec, want := range map[*nodespec.Spec]int{&only4: c.only4, &both: c.both} {
			spec.Network.Encapsulation = c.encapsulation
			plan, err := NewPlan(*spec, dirs.System(), ranges, 1500)
			if err != nil || plan.MTU != want {
				t.Errorf("%s on %v: MTU %d, %v; want %d", c.encapsulation, spec.Node.IPs, plan.MTU, err, want)
			}
		}
	}
	only4.Network.Encapsulation = "ipsec"
	if _, err := NewPlan(only4, dirs.System(), ranges, 1500); err == nil {
		t.Error("NewPlan accepts an unknown encapsulation")
	}
}

func TestState(t *testing.T) {
	node := &corev1.Node{}
	if ready, detail := state(node); ready || detail == "" {
		t.Errorf("a Node without status: %t %q", ready, detail)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no network"}}
	if ready, detail := state(node); ready || detail != "KubeletNotReady: no network" {
		t.Errorf("a Node that is not ready: %t %q", ready, detail)
	}
	node.Status.Conditions[0].Status = corev1.ConditionTrue
	if ready, detail := state(node); !ready || detail != "" {
		t.Errorf("a Node that is ready: %t %q", ready, detail)
	}
}

// TestFormer checks which addresses of a bridge former accepts: those of the first hosts in ranges
// of the cluster, if there is one for each family of the cluster.
func TestFormer(t *testing.T) {
	cluster := prefixes("10.244.0.0/16", "fd00:10:244::/48")
	for _, test := range []struct {
		name string
		have []netip.Prefix
		want []netip.Addr
	}{
		{"no bridge", nil, nil},
		{"both families", prefixes("fe80::1/64", "fd00:10:244:3::1/64", "10.244.3.1/24"), addresses("10.244.3.1", "fd00:10:244:3::1")},
		{"one family", prefixes("fe80::1/64", "10.244.3.1/24"), nil},
		{"outside the ranges of the cluster", prefixes("10.245.3.1/24", "fd00:10:245:3::1/64"), nil},
		{"not the first address of the range", prefixes("10.244.3.2/24", "fd00:10:244:3::1/64"), nil},
		{"larger than the range of the cluster", prefixes("10.0.0.1/8", "fd00:10:244:3::1/64"), nil},
	} {
		if got := former(cluster, test.have); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestPublish checks that publish creates an EndpointSlice of the cluster DNS with the node for
// each family, and deletes these EndpointSlices if the DNS is external.
func TestPublish(t *testing.T) {
	client := fake.NewClientset()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	a := &Agent{addrs: []netip.Addr{netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("fd00::1")}}
	for _, c := range []struct {
		external bool
		want     int
	}{{false, 2}, {false, 2}, {true, 0}, {true, 0}, {false, 2}} {
		a.spec.External.DNS = c.external
		if err := a.publish(t.Context(), client, node); err != nil {
			t.Fatal(err)
		}
		if list, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != c.want {
			t.Errorf("external %t: %d slices, want %d; %v", c.external, len(list.Items), c.want, err)
		}
	}
}

// TestPublishLoop checks a node with an external pod network. The endpoint of the cluster DNS has
// the address ownDNS4, and the status text names the external network. The first write fails and is
// repeated.
func TestPublishLoop(t *testing.T) {
	client := fake.NewClientset()
	refused := errors.New("no rights yet")
	client.PrependReactor("create", "endpointslices", func(testclient.Action) (bool, runtime.Object, error) {
		err := refused
		refused = nil
		return err != nil, nil, err
	})
	a := New(nodespec.Spec{External: nodespec.External{Network: true}}, dirs.System(), nil, nil)
	a.addrs = []netip.Addr{ownDNS4}
	a.nodes <- &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said []string
	err := a.publishLoop(ctx, client, func(name string, ready bool, detail string) {
		said = append(said, fmt.Sprint(name, " ", ready, " ", detail))
		if len(said) == 2 {
			cancel()
		}
	})
	const elsewhere = "network true does not run: an external component connects pods (Cluster.spec.external)"
	if want := []string{elsewhere + "; cluster DNS is not published: no rights yet", elsewhere}; err != nil || !slices.Equal(said, want) {
		t.Errorf("%q, %v", said, err)
	}
	list, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Endpoints[0].Addresses[0] != "192.0.0.8" {
		t.Errorf("%v, %v", list, err)
	}
}
