package kubeapiserver

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// newTestPorts returns the plugin of a control plane at 10.0.0.5 and 10.0.0.6, with a Node at
// 10.0.0.20 and 2001:db8::20.
func newTestPorts(t *testing.T, spec nodespec.Spec, ready bool) *machinePorts {
	t.Helper()
	plugin, err := newMachinePorts(strings.NewReader(reservedConfig(spec)))
	if err != nil {
		t.Fatal(err)
	}
	p := plugin.(*machinePorts)
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w", Annotations: map[string]string{nodespec.AddressesAnnotation: "10.0.0.20,10.0.0.21"}}}
	for _, a := range []string{"10.0.0.20", "2001:db8::20"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.20"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "w"})
	if err := nodes.Add(node); err != nil {
		t.Fatal(err)
	}
	p.nodes = listers.NewNodeLister(nodes)
	p.known = func() bool { return ready }
	return p
}

func portsSpec() nodespec.Spec {
	address := netip.MustParseAddr
	return nodespec.Spec{
		Node:             nodespec.Node{IPs: []netip.Addr{address("10.0.0.5")}},
		ControlPlanes:    []netip.Addr{address("10.0.0.5"), address("10.0.0.6")},
		VirtualAddresses: []netip.Addr{address("10.0.0.9")}, Endpoint: "https://10.0.0.10:6443",
		Network: nodespec.Network{
			PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
			ExternalIPs:  []nodespec.Range{{First: address("10.0.0.16"), Last: address("10.0.0.31")}},
		},
	}
}

// judge calls the plugin for the change of an object from before to now. before is nil for a new
// object; subresource is empty for the object itself.
func judge(t *testing.T, p *machinePorts, now, before runtime.Object, subresource string) error {
	t.Helper()
	operation := admission.Update
	if before == nil {
		operation = admission.Create
	}
	a := admission.NewAttributesRecord(now, before, schema.GroupVersionKind{}, "ns", "s", schema.GroupVersionResource{}, subresource, operation, nil, false, &user.DefaultInfo{Name: "editor"})
	return p.Validate(t.Context(), a, nil)
}

// TestServicesAndMachines checks that a Service cannot get the address of a machine in any field. A
// Service that already has such an address can still be changed in other fields.
func TestServicesAndMachines(t *testing.T) {
	external := func(all ...string) *core.Service { return &core.Service{Spec: core.ServiceSpec{ExternalIPs: all}} }
	ingress := func(mode core.LoadBalancerIPMode, all ...string) *core.Service {
		s := &core.Service{Spec: core.ServiceSpec{Type: core.ServiceTypeLoadBalancer}}
		for _, a := range all {
			i := core.LoadBalancerIngress{IP: a, IPMode: &mode}
			if mode == "" {
				i.IPMode = nil
			}
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, i)
		}
		return s
	}
	requesting := func(address string) *core.Service {
		return &core.Service{Spec: core.ServiceSpec{Type: core.ServiceTypeLoadBalancer, LoadBalancerIP: address}}
	}
	annotated := func(text string) *core.Service {
		return &core.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"orlop.dev/address": text}}}
	}
	p, strict := newTestPorts(t, portsSpec(), true), newTestPorts(t, func() nodespec.Spec { s := portsSpec(); s.Network.ExternalIPs = nil; return s }(), true)
	for name, c := range map[string]struct {
		plugin      *machinePorts
		now, before *core.Service
		part, want  string
	}{
		"no address":                                    {p, external(), nil, "", ""},
		"an allowed address":                            {p, external("10.0.0.30"), nil, "", ""},
		"no address is allowed":                         {strict, external("10.0.0.30"), nil, "", "Cluster.spec.networks.externalIPs"},
		"an address outside the ranges":                 {p, external("10.0.0.32"), nil, "", "no range of Cluster.spec.networks.externalIPs"},
		"a Node's address in a range":                   {p, external("10.0.0.30", "10.0.0.20"), nil, "", "10.0.0.20: it is the address of a Node"},
		"a Node's second address in a range":            {p, external("10.0.0.21"), nil, "", "10.0.0.21: it is the address of a Node"},
		"a Node's address as IPv6":                      {p, external("::ffff:10.0.0.20"), nil, "", "it is the address of a Node"},
		"a Node's address with leading zeros":           {p, external("010.000.000.020"), nil, "", "it is the address of a Node"},
		"not an IP address":                             {p, external("node"), nil, "", "it is not an IP address"},
		"a control-plane address is added":              {p, external("10.0.0.30", "10.0.0.6"), external("10.0.0.30"), "", "10.0.0.6"},
		"a Node's address from before":                  {strict, external("10.0.0.20"), external("10.0.0.20"), "", ""},
		"an address is removed":                         {strict, external(), external("10.0.0.20"), "", ""},
		"status: a Node's address":                      {p, ingress("", "10.0.0.20"), ingress(""), "status", "it is the address of a Node"},
		"status: a Node's external address":             {p, ingress("", "203.0.113.20"), ingress(""), "status", "it is the address of a Node"},
		"status: a Node's IPv6 address":                 {p, ingress(core.LoadBalancerIPModeVIP, "2001:db8::20"), ingress(""), "status", "it is the address of a Node"},
		"status: a control-plane machine's address":     {p, ingress("", "10.0.0.6"), ingress(""), "status", "control-plane"},
		"status: the virtual address":                   {p, ingress("", "10.0.0.9"), ingress(""), "status", "control-plane"},
		"status: the address of the endpoint":           {p, ingress("", "10.0.0.10"), ingress(""), "status", "control-plane"},
		"status: loopback":                              {p, ingress("", "127.0.0.1"), ingress(""), "status", "not the address of one machine"},
		"status: an address of Services":                {p, ingress("", "10.96.0.1"), ingress(""), "status", "inside the cluster"},
		"status: an address of pods":                    {p, ingress("", "10.244.1.2"), ingress(""), "status", "inside the cluster"},
		"status: an address of no machine":              {strict, ingress("", "10.0.0.200"), ingress(""), "status", ""},
		"status: a Node's address with a proxy":         {p, ingress(core.LoadBalancerIPModeProxy, "10.0.0.20"), ingress(""), "status", ""},
		"status: a Node's address, now without a proxy": {p, ingress(core.LoadBalancerIPModeVIP, "10.0.0.20"), ingress(core.LoadBalancerIPModeProxy, "10.0.0.20"), "status", "it is the address of a Node"},
		"spec: requests a Node's address":               {p, requesting("10.0.0.20"), nil, "", "spec.loadBalancerIP"},
		"spec: requests another address":                {p, requesting("10.0.0.200"), nil, "", ""},
		"annotation: requests a Node's address":         {p, annotated("10.0.0.200, 2001:db8::20"), nil, "", "it is the address of a Node"},
		"annotation: requests an invalid address":       {p, annotated("x"), nil, "", ""},
	} {
		var before runtime.Object
		if c.before != nil {
			before = c.before
		}
		err := judge(t, c.plugin, c.now, before, c.part)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestUnknownNodes checks that, until the Nodes are known, a Service with an address is rejected,
// and a Service without an address is accepted.
func TestUnknownNodes(t *testing.T) {
	p := newTestPorts(t, portsSpec(), false)
	if err := judge(t, p, &core.Service{}, nil, ""); err != nil {
		t.Error(err)
	}
	if err := judge(t, p, &core.Service{Spec: core.ServiceSpec{ExternalIPs: []string{"10.0.0.30"}}}, nil, ""); err == nil {
		t.Error("an address was accepted before the Nodes are known")
	}
}

// TestServiceRanges checks that a range of service addresses that contains a machine is rejected.
func TestServiceRanges(t *testing.T) {
	p := newTestPorts(t, portsSpec(), true)
	for text, ok := range map[string]bool{"10.0.0.16/28": false, "10.0.0.0/28": false, "2001:db8::/112": false, "10.1.0.0/24": true} {
		if err := judge(t, p, &networking.ServiceCIDR{Spec: networking.ServiceCIDRSpec{CIDRs: []string{text}}}, nil, ""); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestHostPorts checks that a pod cannot get a port of the system on the machine, and can get any
// other port.
func TestHostPorts(t *testing.T) {
	pod := func(host bool, ports ...core.ContainerPort) *core.Pod {
		return &core.Pod{Spec: core.PodSpec{HostNetwork: host, Containers: []core.Container{{Name: "c", Ports: ports}}}}
	}
	p := newTestPorts(t, portsSpec(), true)
	tcp, udp := core.ProtocolTCP, core.ProtocolUDP
	for name, c := range map[string]struct {
		pod *core.Pod
		ok  bool
	}{
		"no host port":                          {pod(false, core.ContainerPort{ContainerPort: 50000, Protocol: tcp}), true},
		"a port that the system does not use":   {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 8080, Protocol: tcp}), true},
		"the port of the management API":        {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 50000, Protocol: tcp}), false},
		"without a protocol, which means TCP":   {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 2379}), false},
		"on one address":                        {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 10250, HostIP: "10.0.0.5", Protocol: tcp}), false},
		"a port of loopback":                    {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 10256, HostIP: "127.0.0.1", Protocol: tcp}), false},
		"the port of the balancer":              {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 6444, Protocol: tcp}), false},
		"the number of a TCP port, as UDP":      {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 50000, Protocol: udp}), true},
		"the port of VXLAN":                     {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 8472, Protocol: udp}), false},
		"as the second port of a container":     {pod(false, core.ContainerPort{ContainerPort: 80, Protocol: tcp}, core.ContainerPort{ContainerPort: 81, HostPort: 6443, Protocol: tcp}), false},
		"a system port, with host network":      {pod(true, core.ContainerPort{ContainerPort: 50000, HostPort: 50000, Protocol: tcp}), false},
		"a port of loopback, with host network": {pod(true, core.ContainerPort{ContainerPort: 10256, HostPort: 10256, Protocol: tcp}), true},
		"another port, with host network":       {pod(true, core.ContainerPort{ContainerPort: 9100, HostPort: 9100, Protocol: tcp}), true},
	} {
		if err := judge(t, p, c.pod, nil, ""); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		c.pod.Spec.InitContainers, c.pod.Spec.Containers = c.pod.Spec.Containers, nil
		if err := judge(t, p, c.pod, nil, ""); (err == nil) != c.ok {
			t.Errorf("%s, in an init container: %v", name, err)
		}
	}
	if err := judge(t, p, pod(false, core.ContainerPort{HostPort: 50000}), pod(false), "status"); err != nil {
		t.Errorf("an update of the status of an existing pod: %v", err)
	}
}

// TestNodePorts checks that the range of node ports and the system's ports are disjoint.
func TestNodePorts(t *testing.T) {
	for _, arg := range flags(portsSpec(), dirs.In(t.TempDir())) {
		if strings.HasPrefix(arg, "--service-node-port-range") {
			t.Fatalf("the range is no longer upstream's: %s", arg)
		}
	}
	nodePorts := parsed(t).ServiceNodePortRange
	for _, port := range append(append(nodespec.MachineTCP(), nodespec.MachineUDP()...), nodespec.LoopbackTCP()...) {
		if nodePorts.Size == 0 || nodePorts.Contains(port) {
			t.Errorf("port %d is in the range %v", port, nodePorts)
		}
	}
}
