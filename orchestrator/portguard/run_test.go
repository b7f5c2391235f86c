package portguard

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// node returns a Node with these internal addresses and its name as the host name.
func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	return n
}

// pod returns a running pod on Node a. If host is true, the pod uses the network of the host.
func pod(namespace, name, address string, host bool) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{NodeName: "a", HostNetwork: host},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// wait reads tables from the channel until a table contains each text of the list words and no text
// of the list absent. It fails the test after 20 seconds.
func wait(t *testing.T, tables <-chan string, words, absent []string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case text := <-tables:
			good := true
			for _, w := range words {
				good = good && strings.Contains(text, w)
			}
			for _, w := range absent {
				good = good && !strings.Contains(text, w)
			}
			if good {
				return
			}
		case <-late:
			t.Fatalf("no table with %q and without %q was written", words, absent)
		}
	}
}

// TestWatch checks that the first table has the addresses of the specification. Later tables also
// contain the addresses of a new machine, and of the pods of the namespace that may reach kubelets.
// A failed write is announced and repeated.
func TestWatch(t *testing.T) {
	spec := nodespec.Spec{
		Node:       nodespec.Node{Name: "a", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.5")}},
		Network:    nodespec.Network{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		Kubernetes: config.Kubernetes{Kubelet: config.Kubelet{ClosedToPods: true, OpenToNamespaces: []string{"monitoring"}}},
	}
	api := fake.NewClientset(node("a", "10.0.0.5"), pod("monitoring", "prometheus", "10.244.1.9", false), pod("monitoring", "exporter", "10.0.0.5", true), pod("default", "web", "10.244.1.8", false))
	f, err := newWatcher(api, spec, component.NodesOf(t.Context(), api))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tables, said := make(chan string, 100), make(chan string, 100)
	fails := 1
	loaded := make(chan struct{})
	k := &applier{
		loaded: sync.OnceFunc(func() { close(loaded) }),
		write: func(_ context.Context, commands string) error {
			if fails--; fails >= 0 {
				return errors.New("the kernel says no")
			}
			tables <- commands
			return nil
		},
		announce: func(_ string, ready bool, detail string) {
			if ready {
				detail = "ready: " + detail
			}
			said <- detail
		},
	}
	ended := make(chan struct{})
	go func() { k.run(ctx, f.changed, f.input); close(ended) }()
	if text := <-said; text != "the kernel says no" {
		t.Errorf("the component announces %q", text)
	}
	select {
	case <-loaded:
		t.Error("loaded was called although the kernel has rejected the table")
	default:
	}
	wait(t, tables, []string{"machines4 { type ipv4_addr; elements = { 10.0.0.5 }"}, []string{"10.244.1.9"})
	<-loaded
	go f.start(ctx)
	wait(t, tables, []string{"readers4 { type ipv4_addr; elements = { 10.244.1.9 }"}, []string{"10.244.1.8"})
	other := node("b", "10.0.0.6", "2001:db8::6")
	other.Annotations = map[string]string{nodespec.AddressesAnnotation: "10.0.0.6,10.0.7.6"}
	if _, err := api.CoreV1().Nodes().Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, tables, []string{"{ 10.0.0.5, 10.0.0.6, 10.0.7.6 }", "{ 2001:db8::6 }"}, nil)
	if err := api.CoreV1().Nodes().Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, tables, []string{"elements = { 10.0.0.5 }"}, []string{"10.0.0.6"})
	cancel()
	<-ended
	last := ""
	for len(said) > 0 {
		last = <-said
	}
	if !strings.HasPrefix(last, "ready: protects the ports of machines") {
		t.Errorf("the last announcement is %q", last)
	}
}

// TestPublish checks that publishOnce publishes the addresses of the machine in the annotation of
// its Node. It does nothing before the Node exists, or if the annotation has these addresses
// already.
func TestPublish(t *testing.T) {
	spec := nodespec.Spec{Node: nodespec.Node{Name: "a"}, Network: nodespec.Network{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
	api := fake.NewClientset()
	f, err := newWatcher(api, spec, component.NodesOf(t.Context(), api))
	if err != nil {
		t.Fatal(err)
	}
	links := func() ([]netip.Addr, error) { return addresses("127.0.0.1", "10.0.7.5", "10.0.0.5", "10.244.0.1"), nil }
	var published []string
	refuse := false
	publish := func(_ context.Context, text string) error {
		if refuse {
			return errors.New("no")
		}
		published = append(published, text)
		return nil
	}
	once := func(done, fails bool, want string) {
		t.Helper()
		published = nil
		is, err := f.publishOnce(t.Context(), links, publish)
		if is != done || (err != nil) != fails || strings.Join(published, ";") != want {
			t.Errorf("published %q, done %t, error %v; want %q, %t, error %t", published, is, err, want, done, fails)
		}
	}
	once(false, false, "")
	n := node("a", "10.0.0.5")
	if err := f.nodes.GetStore().Add(n); err != nil {
		t.Fatal(err)
	}
	once(false, false, "10.0.0.5,10.0.7.5")
	refuse = true
	once(false, true, "")
	n.Annotations = map[string]string{nodespec.AddressesAnnotation: "10.0.0.5,10.0.7.5"}
	once(true, false, "")
}
