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

// judge calls the plugin for a change of an object from before to now. For a new object, before is
// nil.
func judge(t *testing.T, p *machinePorts, now, before runtime.Object, part string) error {
	t.Helper()
	how := admission.Update
	if before == nil {
		how = admission.Create
	}
	a := admission.NewAttributesRecord(now, before, schema.GroupVersionKind{}, "ns", "s", schema.GroupVersionResource{}, part, how, nil, false, &user.DefaultInfo{Name: "editor"})
	return p.Validate(t.Context(), a, nil)
}

// TestServicesAndMachines checks that a Service cannot get a machine's address in any field. It
// also checks that an address that a Service already has does not block other changes.
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
	asks := func(address string) *core.Service {
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
		"no address":                                {p, external(), nil, "", ""},
		"an allowed one":                            {p, external("10.0.0.30"), nil, "", ""},
		"none is allowed":                           {strict, external("10.0.0.30"), nil, "", "Cluster.spec.networks.externalIPs"},
		"one outside the ranges":                    {p, external("10.0.0.32"), nil, "", "no range of Cluster.spec.networks.externalIPs"},
		"a Node's in a range":                       {p, external("10.0.0.30", "10.0.0.20"), nil, "", "10.0.0.20: it is the address of a Node"},
		"its second in a range":                     {p, external("10.0.0.21"), nil, "", "10.0.0.21: it is the address of a Node"},
		"the same, as IPv6":                         {p, external("::ffff:10.0.0.20"), nil, "", "it is the address of a Node"},
		"the same, with zeros":                      {p, external("010.000.000.020"), nil, "", "it is the address of a Node"},
		"no address at all":                         {p, external("node"), nil, "", "it is not an IP address"},
		"one is added":                              {p, external("10.0.0.30", "10.0.0.6"), external("10.0.0.30"), "", "10.0.0.6"},
		"one was there before":                      {strict, external("10.0.0.20"), external("10.0.0.20"), "", ""},
		"an address is removed":                     {strict, external(), external("10.0.0.20"), "", ""},
		"the status, a Node's":                      {p, ingress("", "10.0.0.20"), ingress(""), "status", "it is the address of a Node"},
		"the status, a Node's external one":         {p, ingress("", "203.0.113.20"), ingress(""), "status", "it is the address of a Node"},
		"the status, a Node's second":               {p, ingress(core.LoadBalancerIPModeVIP, "2001:db8::20"), ingress(""), "status", "it is the address of a Node"},
		"the status, the control plane's":           {p, ingress("", "10.0.0.6"), ingress(""), "status", "control-plane"},
		"the status, the virtual one":               {p, ingress("", "10.0.0.9"), ingress(""), "status", "control-plane"},
		"the status, the endpoint's":                {p, ingress("", "10.0.0.10"), ingress(""), "status", "control-plane"},
		"the status, loopback":                      {p, ingress("", "127.0.0.1"), ingress(""), "status", "not the address of one machine"},
		"the status, a Service's":                   {p, ingress("", "10.96.0.1"), ingress(""), "status", "inside the cluster"},
		"the status, a pod's":                       {p, ingress("", "10.244.1.2"), ingress(""), "status", "inside the cluster"},
		"the status, of a pool or another's":        {strict, ingress("", "10.0.0.200"), ingress(""), "status", ""},
		"the status, a Node's behind a proxy":       {p, ingress(core.LoadBalancerIPModeProxy, "10.0.0.20"), ingress(""), "status", ""},
		"the status, no proxy any more":             {p, ingress(core.LoadBalancerIPModeVIP, "10.0.0.20"), ingress(core.LoadBalancerIPModeProxy, "10.0.0.20"), "status", "it is the address of a Node"},
		"requests a Node's address":                 {p, asks("10.0.0.20"), nil, "", "spec.loadBalancerIP"},
		"requests another address":                  {p, asks("10.0.0.200"), nil, "", ""},
		"requests by annotation":                    {p, annotated("10.0.0.200, 2001:db8::20"), nil, "", "it is the address of a Node"},
		"requests an invalid address by annotation": {p, annotated("x"), nil, "", ""},
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

// TestUnknownNodes checks that a Service with an address is rejected until the Nodes are known, and
// that a Service without addresses does not wait.
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

// TestHostPorts checks that a pod cannot have a port of the system, and can have any other port.
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
		"none":                   {pod(false, core.ContainerPort{ContainerPort: 50000, Protocol: tcp}), true},
		"another":                {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 8080, Protocol: tcp}), true},
		"the API":                {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 50000, Protocol: tcp}), false},
		"no protocol":            {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 2379}), false},
		"one address":            {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 10250, HostIP: "10.0.0.5", Protocol: tcp}), false},
		"loopback's":             {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 10256, HostIP: "127.0.0.1", Protocol: tcp}), false},
		"the way to the API":     {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 6444, Protocol: tcp}), false},
		"the same number of UDP": {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 50000, Protocol: udp}), true},
		"the tunnel's":           {pod(false, core.ContainerPort{ContainerPort: 80, HostPort: 8472, Protocol: udp}), false},
		"the second port":        {pod(false, core.ContainerPort{ContainerPort: 80, Protocol: tcp}, core.ContainerPort{ContainerPort: 81, HostPort: 6443, Protocol: tcp}), false},
		"the machine's network":  {pod(true, core.ContainerPort{ContainerPort: 50000, HostPort: 50000, Protocol: tcp}), false},
		"its loopback's":         {pod(true, core.ContainerPort{ContainerPort: 10256, HostPort: 10256, Protocol: tcp}), true},
		"its own":                {pod(true, core.ContainerPort{ContainerPort: 9100, HostPort: 9100, Protocol: tcp}), true},
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
