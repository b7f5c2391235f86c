package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// A Service selects this load balancer by its class, and requests a pool and addresses by its
// annotations.
const (
	Class          = "orlop.dev/pool" // value of spec.loadBalancerClass
	PoolAnnotation = "orlop.dev/pool" // its value is the name of a pool
	// The value of AddressAnnotation is at most one address of each family, separated by a comma.
	AddressAnnotation = "orlop.dev/address"
)

// IsManaged reports whether this load balancer is responsible for a Service: the type is
// LoadBalancer, and the class is Class or not set.
func IsManaged(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// Addresses returns the addresses in the status of a Service, and omits invalid ones. A client with
// write access to the status can write any address, so callers must check that an address is in a
// pool.
func Addresses(s *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// read converts a Service object to the input of Step.
func read(s *corev1.Service) Service {
	policy := s.Spec.IPFamilyPolicy
	out := Service{
		Key: s.Namespace + "/" + s.Name, Created: s.CreationTimestamp.Time, Managed: IsManaged(s), Ending: s.DeletionTimestamp != nil,
		Families: s.Spec.IPFamilies, DualOnly: policy != nil && *policy == corev1.IPFamilyPolicyRequireDualStack,
		Pool: strings.TrimSpace(s.Annotations[PoolAnnotation]), Has: Addresses(s), Explicit: s.Spec.LoadBalancerClass != nil,
		WantedBy: "the annotation " + AddressAnnotation, MachinePort: machinePort(s),
	}
	text := s.Annotations[AddressAnnotation]
	if strings.TrimSpace(text) == "" && s.Spec.LoadBalancerIP != "" {
		text, out.WantedBy = s.Spec.LoadBalancerIP, "the field spec.loadBalancerIP"
	}
	out.Wanted, out.Invalid = parseWanted(out.WantedBy, text, s.Spec.IPFamilies)
	return out
}

// machinePort reports whether the Service has a port on which the machines themselves listen.
func machinePort(s *corev1.Service) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		switch p.Protocol {
		case corev1.ProtocolTCP, "":
			return slices.Contains(nodespec.MachineTCP(), int(p.Port))
		case corev1.ProtocolUDP:
			return slices.Contains(nodespec.MachineUDP(), int(p.Port))
		case corev1.ProtocolSCTP:
		}
		return false
	})
}

// parseWanted parses the text of a request for addresses. The parameter by names the annotation or
// field in the error text. invalid is the error text, or "" if the request is valid.
func parseWanted(by, text string, families []corev1.IPFamily) (wanted []netip.Addr, invalid string) {
	refuse := func(format string, args ...any) ([]netip.Addr, string) {
		return nil, fmt.Sprintf("%s cannot be used: %s; expected addresses separated by commas, at most one for each of the Service's ipFamilies",
			by, fmt.Sprintf(format, args...))
	}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		a, err := netip.ParseAddr(word)
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6():
			return refuse("%q is not an IP address", word)
		case !slices.Contains(families, familyOf(a)):
			return refuse("%s is an %s address, and the Service does not have this family", a, familyOf(a))
		case slices.ContainsFunc(wanted, func(w netip.Addr) bool { return familyOf(w) == familyOf(a) }):
			return refuse("%s is the second %s address", a, familyOf(a))
		}
		wanted = append(wanted, a)
	}
	return wanted, ""
}

// ingress returns the status of a Service with these addresses. Their mode is VIP, because packets
// arrive at a node with the address as their destination, and kube-proxy handles them.
func ingress(addresses []netip.Addr) []corev1.LoadBalancerIngress {
	mode := corev1.LoadBalancerIPModeVIP
	// The list is never nil: without addresses, the patch contains an empty list, which empties the
	// status.
	out := []corev1.LoadBalancerIngress{}
	for _, a := range addresses {
		out = append(out, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return out
}
