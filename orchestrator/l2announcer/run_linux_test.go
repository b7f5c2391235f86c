package l2announcer

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// board records the status texts of the component: text is the newest, and all has all of them.
type board struct {
	mu   sync.Mutex
	text string
	all  []string
}

func (b *board) announce(_ string, _ bool, detail string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.all = detail, append(b.all, detail)
}

func (b *board) await(t *testing.T, want string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			b.mu.Lock()
			defer b.mu.Unlock()
			t.Logf("the status text is %q", b.text)
		}
	}()
	await(t, want, func() bool { return b.is(want) })
}

func (b *board) is(want string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text == want
}

// TestRun runs an agent with an API server. The Service has externalTrafficPolicy Local, so the
// node answers for the address of the Service only while the Service has a ready endpoint on the
// node. The node also answers on a link that gets its network later, and after a change of the
// link's MAC. When the Node becomes unready, the node stops answering.
func TestRun(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	outside := rtnltest.NewOther(t)
	rtnltest.Veth(t, "eth0", "far")
	outside.MoveLink(t, "far")
	var far netlink.Link
	outside.Do(func() {
		rtnltest.AddAddresses(t, "far", "192.0.2.5/24")
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
	spec := nodespec.Spec{Node: nodespec.Node{Name: "here"}, Network: nodespec.Network{Pools: []nodespec.Pool{{Name: "a", Ranges: []nodespec.Range{{First: vip4, Last: vip4}}}}}}
	versions, status := make(chan leaseVersion, 1), &board{}
	versions <- leaseVersion{"1", time.Now()}
	a := newAgent(spec, func(ctx context.Context) (*Cluster, error) { return Watch(ctx, api, spec.Network.Pools) })
	defer a.ports.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- neighbor.WithLinks(ctx, func(ctx context.Context, links <-chan struct{}) error {
			return a.run(ctx, links, versions, status.announce)
		})
	}()
	defer func() {
		stop()
		must(t, <-ended)
	}()

	status.await(t, "answers for 0 of 0 addresses")
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: vip4.String()}, {IP: "192.0.2.1"}}
	_, err := api.CoreV1().Services("default").UpdateStatus(ctx, service, metav1.UpdateOptions{})
	must(t, err)
	// The Service has no endpoint yet, and its second address is in no pool.
	status.await(t, "answers for 0 of 1 addresses")
	here := "here"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Endpoints:  []discoveryv1.Endpoint{{NodeName: &here}},
	}
	_, err = api.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
	status.await(t, "answers for 1 of 1 addresses; no link of this machine has a network for 192.0.2.70")
	rtnltest.AddAddresses(t, "eth0", "192.0.2.10/24")
	status.await(t, "answers for 1 of 1 addresses")
	eth0, err := netlink.LinkByName("eth0")
	must(t, err)
	find := func(want neighbor.MAC) {
		t.Helper()
		await(t, "the address resolves to the MAC of the link", func() bool {
			var got neighbor.MAC
			outside.Do(func() { got = ask(t, far, vip4) })
			return got == want
		})
	}
	find(neighbor.MAC(eth0.Attrs().HardwareAddr))

	// A new MAC of the link simulates a replaced network adapter.
	must(t, netlink.LinkSetDown(eth0))
	must(t, netlink.LinkSetHardwareAddr(eth0, other[:]))
	must(t, netlink.LinkSetUp(eth0))
	find(other)

	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	_, err = api.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(t, err)
	status.await(t, "answers for 0 of 1 addresses")
	outside.Do(func() {
		must(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: far.Attrs().Index, IP: vip4.AsSlice(), HardwareAddr: other[:], State: netlink.NUD_PROBE}))
	})
	await(t, "the node no longer answers", func() bool {
		var got entry
		outside.Do(func() { got = known(t, far, vip4) })
		return got == entry{} || got.state == netlink.NUD_FAILED
	})
}

// TestBack checks a node that was cut off and has yielded an address. When the API server answers
// again, the node does not decide by its old data. It first lists the cluster, finds that another
// node owns the address, and does not answer for it.
func TestBack(t *testing.T) {
	ready := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: vip4.String()}}}},
	}
	lost := ready("here")
	lost.Status.Conditions[0].Status = corev1.ConditionUnknown
	states := make(chan *fake.Clientset, 2)
	// The first state is from before the outage. Its watch reports no change.
	states <- fake.NewClientset(ready("here"), service)
	states <- fake.NewClientset(lost, ready("there"), service)
	spec := nodespec.Spec{Node: nodespec.Node{Name: "here"}, Network: nodespec.Network{Pools: []nodespec.Pool{{Name: "a", Ranges: []nodespec.Range{{First: vip4, Last: vip4}}}}}}
	a := newAgent(spec, func(ctx context.Context) (*Cluster, error) { return Watch(ctx, <-states, spec.Network.Pools) })
	a.lease = lease{version: "1", seen: time.Now().Add(-time.Minute)}
	ctx, stop := context.WithCancel(t.Context())
	versions, status, ended := make(chan leaseVersion), &board{}, make(chan error)
	go func() { ended <- a.run(ctx, nil, versions, status.announce) }()
	const nowhere = "; no link of this machine has a network for 192.0.2.70"
	status.await(t, "answers for 1 of 1 addresses"+nowhere+"; cut off from the API server: probes whether other nodes answer")
	versions <- leaseVersion{"1", time.Now()} // no new version, so no renewal of the Lease
	const left = "answers for 0 of 1 addresses; cut off from the API server: yielded 1 to other nodes"
	await(t, "the node does not answer for the address that another node announces", func() bool {
		a.ports.Heard <- neighbor.SeenAddress{Address: vip4, MAC: other, Link: "eth0"}
		return status.is(left)
	})
	versions <- leaseVersion{"2", time.Now()}
	versions <- leaseVersion{"3", time.Now()} // the agent lists the cluster only once more
	status.await(t, "answers for 0 of 1 addresses")
	stop()
	must(t, <-ended)
	if len(status.all) != 3 {
		t.Errorf("status texts:\n%s", strings.Join(status.all, "\n"))
	}
}

// TestLease checks that pollLease sends the version of the node's Lease with the time of the
// request.
func TestLease(t *testing.T) {
	api := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "here", ResourceVersion: "7"},
	})
	versions := make(chan leaseVersion)
	ctx, stop := context.WithCancel(t.Context())
	var polling sync.WaitGroup
	polling.Go(func() { pollLease(ctx, api, "here", versions) })
	if got := <-versions; got.version != "7" || time.Since(got.at) < 0 {
		t.Errorf("version %+v, want 7", got)
	}
	stop()
	polling.Wait()
}
