package announcer

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/rtnl"
	"github.com/orlop-os/orlop/pkg/rtnl/rtnltest"
)

// board is the component's newest detail.
type board struct {
	mu   sync.Mutex
	text string
}

func (b *board) announce(_ string, _ bool, detail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = detail
}

func (b *board) await(t *testing.T, want string) {
	t.Helper()
	last := ""
	defer func() {
		if t.Failed() {
			t.Logf("the component says %q", last)
		}
	}()
	await(t, want, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		last = b.text
		return last == want
	})
}

// TestRun is one node with its API server: the node answers for an address as soon as a Service has it, also on a link that comes later,
// with a ready endpoint where the Service wants that, and no more when the Node is not Ready.
func TestRun(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	outside := rtnltest.NewOther(t)
	rtnltest.Veth(t, "eth0", "far")
	outside.Take(t, "far")
	var far netlink.Link
	outside.Do(func() {
		give(t, "far", "192.0.2.5/24")
		var err error
		far, err = netlink.LinkByName("far")
		must(t, err)
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
	}
	api := fake.NewClientset(node, service)
	ctx, stop := context.WithCancel(t.Context())
	spec := nodespec.Spec{NodeName: "here", Pools: []nodespec.Pool{{Name: "a", Ranges: []nodespec.Range{{First: vip4, Last: vip4}}}}}
	followed, err := follow(ctx, api, spec.Pools)
	must(t, err)
	watcher, err := rtnl.Subscribe()
	must(t, err)
	links, versions, says := make(chan struct{}, 1), make(chan string, 1), &board{}
	links <- struct{}{}
	versions <- "1"
	a := &agent{spec: spec, ports: newPorts(), others: map[netip.Addr]mac{}}
	defer a.ports.closeAll()
	ended := make(chan error, 2)
	go func() { _ = watcher.Run(ctx, onLinks(links)); ended <- nil }()
	go func() { ended <- a.run(ctx, followed, links, versions, says.announce) }()
	defer func() {
		stop()
		for range 2 {
			must(t, <-ended)
		}
	}()

	says.await(t, "answers for 0 of 0 addresses")
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip4.String()}, {IP: "192.0.2.1"}}
	_, err = api.CoreV1().Services("default").UpdateStatus(ctx, service, metav1.UpdateOptions{})
	must(t, err)
	says.await(t, "answers for 0 of 1 addresses") // no endpoint yet, and the other one is of no pool
	here := "here"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Endpoints:  []discoveryv1.Endpoint{{NodeName: &here}},
	}
	_, err = api.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
	says.await(t, "answers for 1 of 1 addresses; no link of this machine has a network for 192.0.2.70")
	give(t, "eth0", "192.0.2.10/24")
	says.await(t, "answers for 1 of 1 addresses")
	eth0, err := netlink.LinkByName("eth0")
	must(t, err)
	outside.Do(func() { resolve(t, far, vip4, mac(eth0.Attrs().HardwareAddr)) })

	// Another network card takes the place of this one.
	must(t, netlink.LinkSetDown(eth0))
	must(t, netlink.LinkSetHardwareAddr(eth0, own[:]))
	must(t, netlink.LinkSetUp(eth0))
	outside.Do(func() {
		await(t, "the new hardware address is announced", func() bool { return known(t, far, vip4).mac == own })
	})

	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	_, err = api.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(t, err)
	says.await(t, "answers for 0 of 1 addresses")
	outside.Do(func() { forget(t, far, vip4) })
	outside.Do(func() {
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: far.Attrs().Index, IP: vip4.AsSlice(), HardwareAddr: own[:], State: netlink.NUD_PROBE}))
		await(t, "nobody answers any more", func() bool { return known(t, far, vip4) == entry{} || known(t, far, vip4).state == netlink.NUD_FAILED })
	})
}

// TestLease: the version of the node's Lease is told.
func TestLease(t *testing.T) {
	api := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "here", ResourceVersion: "7"},
	})
	versions := make(chan string)
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { followLease(ctx, api, "here", versions) })
	if got := <-versions; got != "7" {
		t.Errorf("version %q, want 7", got)
	}
	stop()
	following.Wait()
}
