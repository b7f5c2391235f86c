package main

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// testPool returns a pool with two addresses. One is the machine's, so a Service can get only the
// other.
func testPool() []nodespec.Pool {
	return []nodespec.Pool{{Name: "public", Ranges: []nodespec.Range{{First: netip.MustParseAddr("192.0.2.10"), Last: netip.MustParseAddr("192.0.2.11")}}}}
}

// balanced is a Service that waits for an address.
func balanced(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// serviceAddresses checks with the real API server that Services get the addresses of the pool,
// retain them, and release them when they are deleted or change their type. An Event of a Service
// without an address states the reason. A Service of another load balancer is not changed.
func serviceAddresses(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	services := admin.CoreV1().Services("default")
	add := func(s *corev1.Service) {
		if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(name, want string) {
		t.Helper()
		var last []corev1.LoadBalancerIngress
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			last = s.Status.LoadBalancer.Ingress
			return want == "" && len(last) == 0 || len(last) == 1 && last[0].IP == want && *last[0].IPMode == corev1.LoadBalancerIPModeVIP, nil
		})
		if err != nil {
			t.Fatalf("%s has %+v, want %q: %v", name, last, want, err)
		}
	}
	class := "example.com/other"
	foreign := balanced("lb-foreign")
	foreign.Spec.LoadBalancerClass = &class
	add(foreign)
	add(balanced("lb-1"))
	await("lb-1", "192.0.2.11")
	add(balanced("lb-2"))
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		events, err := admin.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=lb-2,reason=PoolFull"})
		return err == nil && len(events.Items) > 0 && strings.Contains(events.Items[0].Message, "no IPv4 address is free in public"), err
	})
	if err != nil {
		t.Errorf("Service lb-2 has no Event that says why it has no address: %v", err)
	}
	modify(ctx, t, services.Get, services.Update, "lb-1", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	await("lb-1", "")
	await("lb-2", "192.0.2.11")
	add(balanced("lb-3"))
	if err := services.Delete(ctx, "lb-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await("lb-3", "192.0.2.11")
	await("lb-foreign", "")
}
