package main

import (
	"context"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestLoopbackPorts checks that each loopback port in the configuration of a component is in the
// lists nodespec.MachineTCP or nodespec.LoopbackTCP. No pod can use a port of these lists as a host
// port.
func TestLoopbackPorts(t *testing.T) {
	known := slices.Concat(nodespec.MachineTCP(), nodespec.LoopbackTCP())
	for _, port := range []int{kubelet.HealthPort, kubeproxy.HealthPort, controllermanager.Port, scheduler.Port} {
		if !slices.Contains(known, port) {
			t.Errorf("port %d is not in the lists of ports", port)
		}
	}
	several, worker := testSpec(), testSpec()
	several.ControlPlanes = append([]netip.Addr{netip.MustParseAddr("192.0.2.9")}, several.Node.IPs...)
	worker.Node.ControlPlane = false
	found := 0
	for _, spec := range []nodespec.Spec{testSpec(), several, worker} {
		for _, c := range Services(spec, dirs.System()) {
			for _, match := range regexp.MustCompile(`(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)`).FindAllStringSubmatch(c.String(), -1) {
				found++
				if port, err := strconv.Atoi(match[1]); err != nil || !slices.Contains(known, port) {
					t.Errorf("%s: the port of %s is not in the lists of ports", c.Name, match[0])
				}
			}
		}
	}
	if found == 0 {
		t.Error("the test finds no loopback port in the configuration of any component: correct its regular expression")
	}
}

// machinePorts checks with the real API server that no client can use the address of a machine for
// a Service, or a port of a machine as the host port of a pod.
func machinePorts(ctx context.Context, t *testing.T, admin kubernetes.Interface, machine string) {
	services := admin.CoreV1().Services("default")
	refused := func(what string, err error, why string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want it forbidden: %s", what, err, why)
		}
	}
	named := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "grab"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 50000}}}}
		change(&s.Spec)
		return s
	}
	_, err := services.Create(ctx, named(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{machine} }), metav1.CreateOptions{})
	refused("an external IP that is the address of a machine", err, "it is an address of a control-plane machine")
	_, err = services.Create(ctx, named(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.1"} }), metav1.CreateOptions{})
	refused("an external IP, although none is allowed", err, "no range of Cluster.spec.networks.externalIPs holds it")
	class := "example.com/other"
	balanced, err := services.Create(ctx, named(func(s *corev1.ServiceSpec) { s.Type, s.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class }), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: machine}}
	_, err = services.UpdateStatus(ctx, balanced, metav1.UpdateOptions{})
	refused("the address of a machine in the status of a load balancer", err, "status.loadBalancer.ingress: cannot use "+machine)
	balanced.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	if _, err := services.UpdateStatus(ctx, balanced, metav1.UpdateOptions{}); err != nil {
		t.Errorf("the address of another load balancer is rejected: %v", err)
	}
	pod := plainPod("grab")
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 6443}}
	// In the namespace kube-system, Pod Security has no restrictions.
	_, err = admin.CoreV1().Pods("kube-system").Create(ctx, pod, metav1.CreateOptions{})
	refused("a host port that is a port of the machine", err, "cannot use port 6443 of the machine")
	if err := services.Delete(ctx, "grab", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
