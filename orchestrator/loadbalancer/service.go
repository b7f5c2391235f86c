package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// What a Service says.
const (
	Class          = "orlop.dev/pool" // its loadBalancerClass, or none
	PoolAnnotation = "orlop.dev/pool" // the name of a pool
	// addresses, separated by commas, one of each family at most
	AddressAnnotation = "orlop.dev/address"
)

// Managed says whether a Service gets its addresses from the pools.
func IsManaged(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// Addresses are those that a Service's status names. Whoever may write a status may write anything
// into it, so that callers look whether an address is of a pool.
func Addresses(s *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, i := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// read is a Service as Step sees it.
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
	out.Wanted, out.Invalid = wishes(out.WantedBy, text, s.Spec.IPFamilies)
	return out
}

// machinePort says whether one of the Service's ports is one that the machines answer at
// themselves.
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

// wishes reads the addresses that a Service asks for by what is named (its annotation, or its
// field), and says what is wrong with them.
func wishes(by, text string, families []corev1.IPFamily) (wanted []netip.Addr, invalid string) {
	refuse := func(format string, args ...any) ([]netip.Addr, string) {
		return nil, fmt.Sprintf("%s cannot be used: %s; expected addresses separated by commas, one for each of the Service's ipFamilies at most",
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
			return refuse("%s is an %s address, and the Service has none", a, familyOf(a))
		case slices.ContainsFunc(wanted, func(w netip.Addr) bool { return familyOf(w) == familyOf(a) }):
			return refuse("%s is the second %s address", a, familyOf(a))
		}
		wanted = append(wanted, a)
	}
	return wanted, ""
}

// ingress is the status for addresses. They are of the mode VIP: packets arrive with the address as
// their destination, and the service proxy of every node takes them.
func ingress(addresses []netip.Addr) []corev1.LoadBalancerIngress {
	mode := corev1.LoadBalancerIPModeVIP
	// not null: an empty list is what a patch empties the status with
	out := []corev1.LoadBalancerIngress{}
	for _, a := range addresses {
		out = append(out, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return out
}
