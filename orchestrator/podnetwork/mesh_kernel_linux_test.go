package podnetwork

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// place is a network namespace. Do calls a function in this namespace. The type here is the
// namespace of the test.
type place interface{ Do(f func()) }

type here struct{}

func (here) Do(f func()) { f() }

// testNode is a machine of the test, in the network namespace place. It has a single pod, in the
// namespace pod.
type testNode struct {
	place
	pod    *rtnltest.Namespace
	spec   nodespec.Spec
	ranges []netip.Prefix
	plan   Plan
	kernel kernel
}

// describe returns the content of the Node object of n. The Node was registered at second i.
func (n *testNode) describe(i int) Node {
	return Node{
		Name: n.spec.Node.Name, Since: time.Unix(int64(i), 0), Addresses: n.spec.Node.IPs, Ranges: n.ranges,
		Key: n.kernel.key.PublicKey().String(),
	}
}

// apply plans the network of n in a cluster with these Nodes, and applies the plan to its kernel
// twice. It returns the log of the first time. The second time must not change anything.
func (n *testNode) apply(t *testing.T, nodes ...Node) []string {
	t.Helper()
	var done []string
	n.kernel.log = func(text string) { done = append(done, text) }
	mesh := NewMesh(n.spec, Self{Ranges: n.ranges, MTU: n.plan.MTU, Key: n.kernel.key.PublicKey()}, nodes)
	var err error
	n.Do(func() { err = n.kernel.apply(mesh.Pieces) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, os.ErrNotExist) {
		t.Skipf("the kernel of this machine has no %s; the product's has, and `make kernel` runs the test there", n.spec.Network.Encapsulation)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", n.spec.Node.Name, err, strings.Join(done, "\n"))
	}
	first := done
	done = nil
	n.Do(func() { err = n.kernel.apply(mesh.Pieces) })
	if err != nil || len(done) > 0 {
		t.Fatalf("%s: the second apply of the same plan: %v, it changes %q", n.spec.Node.Name, err, done)
	}
	return first
}

// TestMeshKernel connects two machines with a pod each over a link of 1500 bytes, once with each
// encapsulation. Processes and pods of the first machine reach the pod of the second machine in
// both families, with packets of the configured MTU. A restart of the process changes nothing in
// the kernel. After a node has left the cluster, the kernel objects for this node are removed.
func TestMeshKernel(t *testing.T) {
	for _, e := range []string{plain, vxlan, wireguard} {
		t.Run(e, func(t *testing.T) {
			if rtnltest.Isolate(t) {
				runtime.LockOSThread()
				connect(t, e)
			}
		})
	}
}

// TestUpdate checks that the only node of a cluster creates no key. When a second node appears, the
// first node creates a key. Each update publishes the key, until the Node of the first node has it.
// Problems with other nodes are reported.
func TestUpdate(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	rtnltest.Veth(t, "eth0", "eth1")
	spec, ranges := single()
	up(t, "eth0", netip.PrefixFrom(spec.Node.IPs[0], 24))
	var published []string
	refusal := errors.New("no answer")
	m := mesh{spec: spec, dirs: dirs.In(t.TempDir()), publish: func(_ context.Context, key string) error {
		published = append(published, key)
		return refusal
	}}
	object := func(name, pods, key string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{KeyAnnotation: key}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{pods}},
		}
	}
	own, other := object("node-3", "10.244.3.0/24", ""), object("node-9", "10.244.9.0/24", "")
	update := func() string { return m.update(t.Context(), ranges, []any{own, other}) }

	if got := m.update(t.Context(), ranges, []any{own}); got != "" || len(published) > 0 {
		t.Errorf("the only node has the status text %q and publishes the key %q", got, published)
	}
	if _, err := os.Stat(m.dirs.PodNetwork); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the only node has a key: %v", err)
	}
	got := update()
	for _, want := range []string{"0 of 1 other nodes reached", "node-9: has published no key yet", "the node's key is not published: no answer"} {
		if !strings.Contains(got, want) {
			t.Errorf("status text %q, want %q", got, want)
		}
	}
	refusal = nil
	update()
	key, err := privateKey(m.dirs.PodNetwork, spec.Node.Name)
	must(t, err)
	if want := key.PublicKey().String(); len(published) != 2 || published[0] != want || published[1] != want {
		t.Fatalf("the published keys are %q, want twice %s", published, want)
	}
	own = object("node-3", "10.244.3.0/24", published[0])
	if update(); len(published) != 2 {
		t.Error("the key is published although the Node has it")
	}
}

// connect performs TestMeshKernel for one encapsulation.
func connect(t *testing.T, encapsulation string) {
	a, b := twoMachines(t, encapsulation)
	nodes := []Node{a.describe(1), b.describe(2)}
	for _, n := range []*testNode{a, b} {
		// Each node is first the only node. Then the other node appears.
		n.apply(t, n.describe(1))
		n.Do(func() {
			if _, err := netlink.LinkByName(Tunnel); err == nil {
				t.Errorf("%s: a tunnel exists although there is no other node", n.spec.Node.Name)
			}
		})
	}
	for _, n := range []*testNode{a, b} {
		n.apply(t, nodes...)
	}
	largest := a.plan.MTU
	for _, family := range []int{0, 1} {
		to := podAddress(b.ranges[family])
		header := 20 + 8
		if to.Is6() {
			header = 40 + 8
		}
		stop := echo(t, b.pod, to)
		ask(t, a.pod, to, largest-header) // pod to pod
		sender := ask(t, a, to, 100)      // process of the machine to pod
		if want := a.plan.Gateways[family].Addr(); sender != want {
			t.Errorf("a process of the machine sends from %s, want %s", sender, want)
		}
		// A restarted process plans the same objects and changes nothing.
		again := testNode{place: a.place, spec: a.spec, ranges: a.ranges, plan: a.plan, kernel: kernel{key: a.kernel.key}}
		if done := again.apply(t, nodes...); len(done) > 0 {
			t.Errorf("a restart changed %q", done)
		}
		ask(t, a.pod, to, 100)
		stop()
	}
	if encapsulation == wireguard {
		// The other machine gets another key, which this machine adopts.
		b.kernel.key, _ = wgtypes.GeneratePrivateKey()
		nodes[1] = b.describe(2)
		a.apply(t, nodes...)
		b.apply(t, nodes...)
		to := podAddress(b.ranges[0])
		stop := echo(t, b.pod, to)
		ask(t, a.pod, to, 100)
		stop()
	}
	// A third node appears and leaves. The second node stays.
	third, _ := wgtypes.GeneratePrivateKey()
	a.apply(t, nodes[0], nodes[1], Node{
		Name: "node-3", Since: time.Unix(3, 0), Addresses: addresses("192.0.2.3", "2001:db8::3"), Ranges: prefixes("10.244.3.0/24", "fd00:10:244:3::/64"),
		Key: third.PublicKey().String(),
	})
	a.apply(t, nodes...)

	a.apply(t, nodes[0])
	a.Do(func() {
		have, err := a.kernel.read()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range have {
			if r, ok := p.(Route); !ok || !r.refuses() {
				t.Errorf("the kernel object of the removed node still exists: %s", p)
			}
		}
	})
	a.Do(func() {
		to := netip.AddrPortFrom(podAddress(b.ranges[0]), 7)
		if _, err := net.Dial("udp", to.String()); encapsulation != plain && !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("a connection to %s, a pod of the removed node: %v, want host unreachable", to, err)
		}
	})
}

// twoMachines creates two machines with a link between them and a pod on each of them.
func twoMachines(t *testing.T, encapsulation string) (*testNode, *testNode) {
	t.Helper()
	far := rtnltest.NewOther(t)
	rtnltest.Veth(t, "eth0", "far0")
	far.MoveLink(t, "far0")
	machines := []*testNode{{place: here{}}, {place: far}}
	for i, n := range machines {
		spec, _ := dual()
		spec.Node.Name, spec.Network.Encapsulation = fmt.Sprintf("node-%d", i+1), encapsulation
		spec.Node.IPs = addresses(fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1))
		n.spec, n.ranges = spec, prefixes(fmt.Sprintf("10.244.%d.0/24", i+1), fmt.Sprintf("fd00:10:244:%d::/64", i+1))
		n.kernel.key, _ = wgtypes.GeneratePrivateKey()
		n.Do(func() {
			for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
				must(t, os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0o644))
			}
			name := []string{"eth0", "far0"}[i]
			up(t, name, netip.PrefixFrom(spec.Node.IPs[0], 24), netip.PrefixFrom(spec.Node.IPs[1], 64))
			mtu, err := underlayMTU(spec.Node.IPs[0])
			must(t, err)
			n.plan, err = NewPlan(spec, dirs.System(), n.ranges, mtu)
			must(t, err)
			must(t, ensureBridge(n.plan.Gateways, n.plan.MTU))
		})
		n.addPod(t, far, i)
	}
	return machines[0], machines[1]
}

// addPod creates the pod of the node with number i, as the CNI plugin does. If the node is not in
// the namespace of the test, it is in the namespace far.
func (n *testNode) addPod(t *testing.T, far *rtnltest.Namespace, i int) {
	t.Helper()
	n.pod = rtnltest.NewOther(t)
	inner, outer := fmt.Sprintf("pod%d", i), fmt.Sprintf("port%d", i)
	rtnltest.Veth(t, inner, outer)
	n.pod.MoveLink(t, inner)
	if n.place == place(far) {
		far.MoveLink(t, outer)
	}
	n.Do(func() {
		port, err := netlink.LinkByName(outer)
		must(t, err)
		bridge, err := netlink.LinkByName(Bridge)
		must(t, err)
		must(t, netlink.LinkSetMTU(port, n.plan.MTU))
		must(t, netlink.LinkSetMaster(port, bridge))
		must(t, netlink.LinkSetUp(port))
	})
	n.pod.Do(func() {
		link, err := netlink.LinkByName(inner)
		must(t, err)
		must(t, netlink.LinkSetMTU(link, n.plan.MTU))
		for f, r := range n.ranges {
			up(t, inner, netip.PrefixFrom(podAddress(r), r.Bits()))
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: n.plan.Gateways[f].Addr().AsSlice()}))
		}
	})
}

// podAddress returns the address of the only pod of a pod range: the second one after its base.
func podAddress(r netip.Prefix) netip.Addr { return r.Addr().Next().Next() }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The function up adds addresses to a link and sets the link up.
func up(t *testing.T, name string, own ...netip.Prefix) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	for _, p := range own {
		a := &netlink.Addr{IPNet: ipnet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		must(t, netlink.AddrReplace(link, a))
	}
	must(t, netlink.LinkSetUp(link))
}

// patience is the longest wait for an answer. The request is repeated during this time, because the
// link may still be starting, and neighbor discovery may drop the first packet.
const patience = 20 * time.Second

// echo starts a server on an address of a network namespace. The server sends each datagram back to
// its sender, until the returned function is called.
func echo(t *testing.T, at place, address netip.Addr) (stop func()) {
	t.Helper()
	var socket *net.UDPConn
	var err error
	at.Do(func() { socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 7))) })
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		packet := make([]byte, 65536)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			// If this write fails, the sender repeats its request.
			_, _ = socket.WriteToUDPAddrPort(packet[:n], from)
		}
	}()
	return func() {
		socket.Close()
		<-done
	}
}

// ask sends a datagram of size bytes, without fragmentation, from a network namespace to an
// address. It repeats the datagram until the answer arrives. It returns the source address of the
// datagram.
func ask(t *testing.T, from place, to netip.Addr, size int) netip.Addr {
	t.Helper()
	var socket *net.UDPConn
	var err error
	from.Do(func() { socket, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 7))) })
	must(t, err)
	defer socket.Close()
	whole(t, socket, to.Is6())
	sender := socket.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	question, answer := bytes.Repeat([]byte{'x'}, size), make([]byte, 65536)
	last := error(nil)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, last = socket.Write(question); errors.Is(last, unix.EMSGSIZE) {
			t.Fatalf("%s to %s: %d bytes: %v", sender, to, size, last)
		}
		must(t, socket.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		n := 0
		if n, last = socket.Read(answer); last == nil && bytes.Equal(answer[:n], question) {
			return sender
		}
	}
	t.Fatalf("%s to %s: no answer in %s: %v", sender, to, patience, last)
	return sender
}

// whole disables the fragmentation of a socket's datagrams.
func whole(t *testing.T, socket *net.UDPConn, v6 bool) {
	t.Helper()
	raw, err := socket.SyscallConn()
	must(t, err)
	var set error
	must(t, raw.Control(func(fd uintptr) {
		if v6 {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		} else {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		}
	}))
	must(t, set)
}
