package podnetwork

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Bridge is the name of the bridge to which the node's pods are connected.
const Bridge = nodespec.PodBridge

// Plan contains all settings that follow from the node's pod ranges.
type Plan struct {
	Gateways []netip.Prefix // the addresses of the bridge, one per family
	Routes   []netip.Prefix // the service ranges, which are routed to the bridge
	MTU      int            // the MTU of the bridge and of pods, in bytes
	Conflist string         // the CNI configuration
	Rules    []string       // the nftables rules of the chain that masquerades
	Closed   []string       // the nftables rules of the chains that drop packets of pods
}

// NewPlan makes the plan for the node's pod ranges. linkMTU is the MTU of the link below the
// tunnel. The MTU of pods leaves room for the headers of the tunnel even on the only node of a
// cluster. So the pods of this node need no change when a second node appears.
func NewPlan(spec nodespec.Spec, dirs dirs.Dirs, ranges []netip.Prefix, linkMTU int) (Plan, error) {
	var p Plan
	less, err := overhead(spec)
	if err != nil {
		return Plan{}, err
	}
	p.MTU = linkMTU - less
	for _, r := range ranges {
		r = r.Masked()
		gateway := r.Addr().Next()
		if !r.Contains(gateway.Next()) {
			return Plan{}, fmt.Errorf("pod range %s: cannot use: no room for a bridge and a pod", r)
		}
		p.Gateways = append(p.Gateways, netip.PrefixFrom(gateway, r.Bits()))
	}
	p.Routes = spec.Network.ServiceCIDRs
	p.Conflist = conflist(dirs, ranges, p.MTU)
	for _, r := range spec.Network.PodCIDRs {
		family := "ip"
		if r.Addr().Is6() {
			family = "ip6"
		}
		// Packets within the cluster keep their source address.
		p.Rules = append(p.Rules, fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr != %[2]s oifname != %[3]q masquerade", family, r, Bridge))
	}
	if spec.Network.Encapsulation == vxlan {
		// A VXLAN accepts packets from any source. Without this rule, a pod could inject a packet
		// with the address of another pod and bypass all policies.
		p.Closed = append(p.Closed, fmt.Sprintf("iifname %q udp dport %d drop", Bridge, paths.PortVXLAN))
	}
	return p, nil
}

// Addresses returns the addresses of the bridge without prefix lengths.
func (p Plan) Addresses() []netip.Addr { return addressesOf(p.Gateways) }

func addressesOf(prefixes []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range prefixes {
		out = append(out, p.Addr())
	}
	return out
}

// former returns the addresses that the bridge of an earlier process has for the cluster DNS, in
// the order of podCIDRs. have are all addresses of the bridge. For each pod range of the cluster,
// the bridge must have an address that is the first of its network. Otherwise the bridge is
// incomplete, and former returns nil.
func former(podCIDRs, have []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, r := range podCIDRs {
		at := slices.IndexFunc(have, func(p netip.Prefix) bool {
			return p.Bits() >= r.Bits() && r.Contains(p.Addr()) && p.Masked().Addr().Next() == p.Addr()
		})
		if at < 0 {
			return nil
		}
		out = append(out, have[at].Addr())
	}
	return out
}

// conflist returns the CNI network configuration: a veth pair on the bridge, an address from the
// node's range, and host ports if a pod requests them. The allocated addresses are recorded on a
// tmpfs, because pods do not survive a reboot.
func conflist(dirs dirs.Dirs, ranges []netip.Prefix, mtu int) string {
	var subnets [][]map[string]string
	var routes []map[string]string
	for _, r := range ranges {
		subnets = append(subnets, []map[string]string{{"subnet": r.Masked().String()}})
		everywhere := "0.0.0.0/0"
		if r.Addr().Is6() {
			everywhere = "::/0"
		}
		routes = append(routes, map[string]string{"dst": everywhere})
	}
	content := map[string]any{
		"cniVersion": "1.0.0",
		"name":       "orlop",
		"plugins": []any{
			map[string]any{
				"type":        "bridge",
				"bridge":      Bridge,
				"isGateway":   true,
				"mtu":         mtu,
				"hairpinMode": true, // a pod reaches itself through its Service
				"ipam":        map[string]any{"type": "host-local", "dataDir": dirs.CNI.State, "ranges": subnets, "routes": routes},
			},
			map[string]any{
				"type":         "portmap",
				"backend":      "nftables",
				"snat":         true,
				"capabilities": map[string]bool{"portMappings": true},
			},
		},
	}
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		// cannot happen for a map of plain values
		panic(fmt.Sprintf("podnetwork: a map of plain values has no JSON form: %v", err))
	}
	return string(text) + "\n"
}

// dnsSlices returns the node's endpoints of the cluster DNS, as one EndpointSlice per address
// family. Kubernetes deletes the slices with the Node, which owns them.
func dnsSlices(node *corev1.Node, addresses []netip.Addr) []*discoveryv1.EndpointSlice {
	yes, udp, tcp := true, corev1.ProtocolUDP, corev1.ProtocolTCP
	port := int32(53)
	dns, dnsTCP := "dns", "dns-tcp"
	var out []*discoveryv1.EndpointSlice
	for _, a := range addresses {
		family := discoveryv1.AddressTypeIPv4
		if a.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		out = append(out, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:      bootstrap.DNSSlice(node.Name, family),
				Namespace: metav1.NamespaceSystem,
				Labels: map[string]string{
					discoveryv1.LabelServiceName: bootstrap.DNSService,
					discoveryv1.LabelManagedBy:   "node-agent.orlop.dev",
				},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			AddressType: family,
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{a.String()},
				NodeName:   &node.Name,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			}},
			Ports: []discoveryv1.EndpointPort{
				{Name: &dns, Protocol: &udp, Port: &port},
				{Name: &dnsTCP, Protocol: &tcp, Port: &port},
			},
		})
	}
	return out
}
