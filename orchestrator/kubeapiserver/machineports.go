package kubeapiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	netutils "k8s.io/utils/net"

	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// MachinePorts is the admission plugin that keeps Services and pods from the machines' own
// addresses and ports. The service proxy and the CNI plugin for host ports rewrite packets on every
// machine as these objects specify. Upstream accepts a machine's address and a system port in them,
// so a user with the right to create a Service in one namespace could capture or close a port of
// every machine.
//
// The plugin checks only values that a request adds. Existing values stay, so that other clients
// can still change the object; package loadbalancer removes an address from a Service when a new
// machine has this address.
const MachinePorts = "OrlopMachinePorts"

type machinePorts struct {
	*admission.Handler
	reserved nodespec.Reserved
	nodes    listers.NodeLister
	known    func() bool // waits for the first list of Nodes; false: it is missing
}

// newMachinePorts makes the plugin from its configuration, a nodespec.Reserved.
func newMachinePorts(config io.Reader) (admission.Interface, error) {
	p := &machinePorts{Handler: admission.NewHandler(admission.Create, admission.Update)}
	if config == nil {
		return nil, errors.New(MachinePorts + ": the configuration is missing")
	}
	p.known = p.WaitForReady
	if err := json.NewDecoder(config).Decode(&p.reserved); err != nil {
		return nil, fmt.Errorf("%s: cannot read its configuration: %w", MachinePorts, err)
	}
	return p, nil
}

// SetExternalKubeInformerFactory implements initializer.WantsExternalKubeInformerFactory.
func (p *machinePorts) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	nodes := f.Core().V1().Nodes()
	p.nodes = nodes.Lister()
	p.SetReadyFunc(nodes.Informer().HasSynced)
}

// ValidateInitialization implements admission.InitializationValidator.
func (p *machinePorts) ValidateInitialization() error {
	if p.nodes == nil {
		return errors.New(MachinePorts + ": no lister of Nodes is set")
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *machinePorts) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	var err error
	switch now := a.GetObject().(type) {
	case *core.Service:
		before, _ := a.GetOldObject().(*core.Service)
		if before == nil {
			before = &core.Service{}
		}
		err = p.service(now, before)
	case *core.Pod:
		if a.GetOperation() == admission.Create && a.GetSubresource() == "" {
			err = hostPorts(&now.Spec)
		}
	case *networking.ServiceCIDR:
		if a.GetOperation() == admission.Create {
			err = p.serviceRange(now.Spec.CIDRs)
		}
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// claim is an address that a request adds to an object.
type claim struct {
	text     string
	field    string
	external bool // the address must also be in an allowed range
}

const (
	remedyExternal = "use a Service of type LoadBalancer, or have the cluster's operator allow a range in Cluster.spec.networks.externalIPs"
	remedyOther    = "name an address that no machine has"
)

// service rejects addresses that now contains and before does not.
func (p *machinePorts) service(now, before *core.Service) error {
	claims := serviceClaims(now, before)
	if len(claims) == 0 {
		return nil
	}
	nodes, err := p.addresses()
	if err != nil {
		return err
	}
	for _, c := range claims {
		why, remedy := "", remedyOther
		switch a, ok := parseAddress(c.text); {
		case !ok:
			why = "it is not an IP address"
		case c.external:
			why, remedy = p.reserved.CheckExternal(a, nodes), remedyExternal
		default:
			why = p.reserved.Check(a, nodes)
		}
		if why != "" {
			return fmt.Errorf("%s: cannot use %s: %s; %s", c.field, c.text, why, remedy)
		}
	}
	return nil
}

// serviceClaims returns the addresses that now contains and before does not. It omits an address
// with a proxy as its load balancer (ipMode), because no machine rewrites packets to it.
func serviceClaims(now, before *core.Service) []claim {
	var out []claim
	for _, text := range added(now.Spec.ExternalIPs, before.Spec.ExternalIPs) {
		out = append(out, claim{text, "spec.externalIPs", true})
	}
	for _, text := range added(programmed(now), programmed(before)) {
		out = append(out, claim{text, "status.loadBalancer.ingress", false})
	}
	for _, text := range added(requested(now), requested(before)) {
		out = append(out, claim{text, "spec.loadBalancerIP", false})
	}
	return out
}

// programmed returns the addresses of the status for which the service proxy makes rules.
func programmed(s *core.Service) []string {
	var out []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" && (i.IPMode == nil || *i.IPMode == core.LoadBalancerIPModeVIP) {
			out = append(out, i.IP)
		}
	}
	return out
}

// requested returns the addresses that a Service requests from a load balancer. It ignores words of
// the annotation that are not addresses; the load balancer reports them.
func requested(s *core.Service) []string {
	var out []string
	if s.Spec.LoadBalancerIP != "" {
		out = append(out, s.Spec.LoadBalancerIP)
	}
	for word := range strings.SplitSeq(s.Annotations[loadbalancer.AddressAnnotation], ",") {
		if _, ok := parseAddress(strings.TrimSpace(word)); ok {
			out = append(out, strings.TrimSpace(word))
		}
	}
	return out
}

func added(now, before []string) []string {
	return slices.DeleteFunc(slices.Clone(now), func(text string) bool { return slices.Contains(before, text) })
}

// parseAddress parses an address as the service proxy does, which accepts leading zeros.
func parseAddress(text string) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return a.Unmap(), ok
}

// addresses returns the addresses of all Nodes, of every type, and the additional addresses of
// their machines. It waits for the first list of Nodes, and returns an error if the list does not
// arrive.
func (p *machinePorts) addresses() ([]netip.Addr, error) {
	if !p.known() {
		return nil, errors.New("the Nodes are not known yet; try again")
	}
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("the Nodes cannot be listed: %w", err)
	}
	var out []netip.Addr
	for _, n := range nodes {
		out = append(out, nodespec.ReadPublished(n.Annotations[nodespec.AddressesAnnotation])...)
		for _, address := range n.Status.Addresses {
			if a, ok := parseAddress(address.Address); ok {
				out = append(out, a)
			}
		}
	}
	return out, nil
}

// serviceRange rejects a range of service addresses that contains a machine's address: a Service
// could get it as its cluster address.
func (p *machinePorts) serviceRange(ranges []string) error {
	nodes, err := p.addresses()
	if err != nil {
		return err
	}
	for _, text := range ranges {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			continue // upstream's validation has rejected it
		}
		for _, a := range slices.Concat(p.reserved.Machines, nodes) {
			if r.Contains(a) {
				return fmt.Errorf("spec.cidrs: cannot use %s: it contains %s, an address of a machine; use a range without addresses of machines", text, a)
			}
		}
	}
	return nil
}

// hostPorts rejects a pod that requests a port of the system. For a hostPort, the machine would
// forward the packets to the pod. A pod with hostNetwork declares the ports on which it listens,
// and could open a port before the system does.
func hostPorts(spec *core.PodSpec) error {
	host := spec.HostNetwork
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, port := range c.Ports {
			number := port.HostPort
			if host {
				number = port.ContainerPort
			}
			if slices.Contains(takenPorts(port.Protocol, host), int(number)) {
				return fmt.Errorf("container %s: cannot use port %d of the machine: the system uses it; use another hostPort", c.Name, number)
			}
		}
	}
	return nil
}

// takenPorts returns the ports of a protocol that no pod may have. A pod with hostNetwork (host)
// may have the ports of loopback and of tunnels, because the machine rewrites no packets for it,
// and it can replace a component of the system (Cluster.spec.external).
func takenPorts(p core.Protocol, host bool) []int {
	switch {
	case p == core.ProtocolUDP && !host:
		return nodespec.MachineUDP()
	case (p == core.ProtocolTCP || p == "") && host:
		return nodespec.MachineTCP()
	case p == core.ProtocolTCP || p == "":
		return slices.Concat(nodespec.MachineTCP(), nodespec.LoopbackTCP())
	}
	return nil
}

// reservedConfig returns the plugin's configuration as JSON, which is valid YAML.
func reservedConfig(spec nodespec.Spec) string {
	text, err := json.Marshal(spec.Reserved())
	if err != nil {
		panic(fmt.Sprintf("kubeapiserver: addresses have no JSON form: %v", err)) // cannot happen
	}
	return string(text)
}
