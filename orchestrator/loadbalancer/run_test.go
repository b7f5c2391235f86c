package loadbalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// server is a fake API server that rejects a write of a status with an outdated resource version.
// The test can make writes fail.
type server struct {
	*fake.Clientset
	mu sync.Mutex
	// fail decides the result of each write of a status: whether the server applies the write, and
	// the error that it returns.
	fail   func(name string) (applied bool, err error)
	writes int
}

func newServer(objects ...runtime.Object) *server {
	s := &server{Clientset: fake.NewClientset(objects...)}
	s.PrependReactor("patch", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.patch(action.(clienttesting.PatchAction))
	})
	return s
}

func (s *server) patch(p clienttesting.PatchAction) (bool, runtime.Object, error) {
	if p.GetSubresource() != "status" {
		return true, nil, fmt.Errorf("patch of %q, want the status", p.GetSubresource())
	}
	s.writes++
	resource := p.GetResource()
	object, err := s.Tracker().Get(resource, p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	now := object.(*corev1.Service).DeepCopy()
	version := now.ResourceVersion
	if err := json.Unmarshal(p.GetPatch(), now); err != nil {
		return true, nil, err
	}
	if now.ResourceVersion != version {
		return true, nil, apierrors.NewConflict(resource.GroupResource(), now.Name, errors.New("another version"))
	}
	applied, failure := true, error(nil)
	if s.fail != nil {
		applied, failure = s.fail(now.Name)
	}
	if applied {
		n, _ := strconv.Atoi(version)
		now.ResourceVersion = strconv.Itoa(n + 1)
		if err := s.Tracker().Update(resource, now, now.Namespace); err != nil {
			return true, nil, err
		}
	}
	return true, now, failure
}

// failing sets the function that decides the results of writes.
func (s *server) failing(f func(name string) (bool, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// events is an EventRecorder that stores each Event as text.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) Event(o runtime.Object, kind, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s: %s %s: %s", o.(*corev1.Service).Name, kind, reason, message))
}

func (e *events) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	e.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (e *events) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	e.Eventf(o, kind, reason, format, args...)
}

// await waits until an Event with this text was recorded. If this takes longer than 20 seconds, it
// fails the test.
func (e *events) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		e.mu.Lock()
		all := slices.Clone(e.all)
		e.mu.Unlock()
		if slices.Contains(all, want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("no Event %q in:\n%s", want, strings.Join(all, "\n"))
		}
	}
}

// object returns a Service that was created at second n and has no address yet.
func object(n int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("s%d", n), UID: types.UID(fmt.Sprintf("uid-%d", n)), ResourceVersion: "1",
			CreationTimestamp: metav1.Unix(int64(n), 0),
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{v4}},
	}
}

// start runs a controller until the test ends.
func start(t *testing.T, s *server, e *events, pools ...nodespec.Pool) {
	ctx, stop := context.WithCancel(t.Context())
	c, err := newController(nodespec.Spec{Network: nodespec.Network{Pools: pools}, Node: nodespec.Node{IPs: addrs("192.0.2.10")}}, component.NodesOf(ctx, s), s, s, e)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- c.run(ctx, func(string) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// await waits until the Services have exactly these addresses. It fails the test after 20 seconds,
// or if two Services have the same address.
func (s *server) await(t *testing.T, want map[string]string) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := s.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got, owner := map[string]string{}, map[netip.Addr]string{}
		for _, o := range list.Items {
			got[o.Name] = joinAddresses(Addresses(&o))
			for _, a := range Addresses(&o) {
				if owner[a] != "" {
					t.Fatalf("%s has the address of %s", o.Name, owner[a])
				}
				owner[a] = o.Name
			}
		}
		if maps.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// TestRun follows Services from their first address to their deletion. A restarted controller
// retains the addresses that Services already have.
func TestRun(t *testing.T) {
	foreign := object(1)
	class := "example.com/other"
	foreign.Spec.LoadBalancerClass = &class
	further := map[string]string{nodespec.AddressesAnnotation: "192.0.2.11,192.0.2.14"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: further}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.11"},
	}}}
	s, e := newServer(foreign, object(2), node), &events{}
	here := pool("a", "192.0.2.10", "192.0.2.14")
	t.Run("first", func(t *testing.T) {
		start(t, s, e, here)
		s.await(t, map[string]string{"s1": "", "s2": "192.0.2.12"})
		for _, n := range []int{4, 3} {
			if _, err := s.CoreV1().Services("default").Create(t.Context(), object(n), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.await(t, map[int]map[string]string{
				4: {"s1": "", "s2": "192.0.2.12", "s4": "192.0.2.13"}, 3: {"s1": "", "s2": "192.0.2.12", "s4": "192.0.2.13", "s3": ""},
			}[n])
		}
		e.await(t, "s2: Normal AddressGiven: the Service has 192.0.2.12")
		e.await(t, "s3: Warning PoolFull: no IPv4 address is free in a: enlarge it in Cluster.spec.networks.loadBalancer.pools, or delete a Service that needs none")
	})
	t.Run("after a restart", func(t *testing.T) {
		before := s.writes
		start(t, s, e, here)
		if err := s.CoreV1().Services("default").Delete(t.Context(), "s2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.await(t, map[string]string{"s1": "", "s3": "192.0.2.12", "s4": "192.0.2.13"})
		if n := s.writes - before; n != 1 {
			t.Errorf("%d writes after a restart, want 1", n)
		}
	})
}

// TestLostAnswers checks writes with a lost answer: the controller finds out whether the write
// was applied before it assigns further addresses. A write for one Service that is always rejected
// does not block other Services.
func TestLostAnswers(t *testing.T) {
	lost := errors.New("connection lost")
	refused := apierrors.NewForbidden(corev1.Resource("services"), "s1", errors.New("by a policy"))
	for name, c := range map[string]struct {
		applied bool
		err     error
		forever bool
		want    map[string]string
	}{
		"applied, and the answer is lost":     {true, lost, false, map[string]string{"s1": "192.0.2.20", "s2": "192.0.2.21"}},
		"not applied, and the answer is lost": {false, lost, false, map[string]string{"s1": "192.0.2.20", "s2": "192.0.2.21"}},
		"rejected":                            {false, refused, true, map[string]string{"s1": "", "s2": "192.0.2.21"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(object(1), object(2))
			once := true
			s.failing(func(name string) (bool, error) {
				if name != "s1" || !once {
					return true, nil
				}
				once = c.forever
				return c.applied, c.err
			})
			start(t, s, &events{}, pool("a", "192.0.2.20", "192.0.2.22"))
			s.await(t, c.want)
		})
	}
}

// TestWithoutPools checks a controller without pools: it creates an Event for each Service that has
// no address after gracePeriod, and it writes no status.
func TestWithoutPools(t *testing.T) {
	served := object(1)
	served.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.99"}}
	young := object(2)
	young.CreationTimestamp = metav1.NewTime(time.Now().Add(-gracePeriod + 2*time.Second).Truncate(time.Second))
	s, e := newServer(served, young, object(3)), &events{}
	start(t, s, e)
	const none = "Warning NoPool: the Service has no address: Cluster.spec.networks.loadBalancer.pools has no pool, and no other load balancer has assigned an address; add a pool, or install a load balancer"
	e.await(t, "s3: "+none)
	e.await(t, "s2: "+none)
	s.await(t, map[string]string{"s1": "192.0.2.99", "s2": "", "s3": ""})
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.writes != 0 || len(e.all) != 2 {
		t.Errorf("%d writes, Events %q", s.writes, e.all)
	}
}

// TestField checks that a Service can request an address by its field loadBalancerIP, and that the
// annotation has precedence over the field.
func TestField(t *testing.T) {
	requesting := func(annotation, field string) Service {
		s := object(1)
		s.Spec.LoadBalancerIP = field
		s.Annotations = map[string]string{AddressAnnotation: annotation}
		return read(s)
	}
	for _, c := range []struct{ annotation, field, want, by, invalid string }{
		{"", "", "", "the annotation orlop.dev/address", ""},
		{"", "192.0.2.11", "192.0.2.11", "the field spec.loadBalancerIP", ""},
		{"192.0.2.12", "192.0.2.11", "192.0.2.12", "the annotation orlop.dev/address", ""},
		{"", "2001:db8::1", "", "the field spec.loadBalancerIP", "the field spec.loadBalancerIP cannot be used: 2001:db8::1 is an IPv6 address"},
		{"", "web", "", "the field spec.loadBalancerIP", `the field spec.loadBalancerIP cannot be used: "web" is not an IP address`},
	} {
		got := requesting(c.annotation, c.field)
		if joinAddresses(got.Wanted) != c.want || got.WantedBy != c.by || !strings.HasPrefix(got.Invalid, c.invalid) || got.Invalid != "" && c.invalid == "" {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
	asking, holding := object(2), object(1)
	asking.Spec.LoadBalancerIP = "192.0.2.11"
	s, e := newServer(holding, asking), &events{}
	start(t, s, e, pool("a", "192.0.2.11", "192.0.2.12"))
	s.await(t, map[string]string{"s1": "192.0.2.12", "s2": "192.0.2.11"})
	outside := object(3)
	outside.Spec.LoadBalancerIP = "192.0.2.99"
	if _, err := s.CoreV1().Services("default").Create(t.Context(), outside, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await(t, "s3: Warning AddressNotInPool: the address 192.0.2.99 cannot be assigned: no pool contains it; change the field spec.loadBalancerIP, or the pools in Cluster.spec.networks.loadBalancer.pools")
}

func TestParseWanted(t *testing.T) {
	both := []corev1.IPFamily{v4, v6}
	for text, c := range map[string]struct {
		families []corev1.IPFamily
		want     string // the addresses, or a part of the error text
	}{
		"":                          {both, ""},
		"192.0.2.1":                 {both, "192.0.2.1"},
		" 2001:db8::1 , 192.0.2.1,": {both, "2001:db8::1, 192.0.2.1"},
		"192.0.2.1,192.0.2.2":       {both, "192.0.2.2 is the second IPv4 address"},
		"2001:db8::1":               {[]corev1.IPFamily{v4}, "2001:db8::1 is an IPv6 address, and the Service does not have this family"},
		"web":                       {both, `"web" is not an IP address`},
		"fe80::1%eth0":              {both, `"fe80::1%eth0" is not an IP address`},
		"::ffff:192.0.2.1":          {both, `"::ffff:192.0.2.1" is not an IP address`},
	} {
		wanted, invalid := parseWanted("it", text, c.families)
		if got := joinAddresses(wanted) + invalid; got != c.want && (invalid == "" || !strings.Contains(invalid, c.want)) {
			t.Errorf("%q: got %q, want %q", text, got, c.want)
		}
	}
}
