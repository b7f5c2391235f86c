package netpolicy

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allows reports whether the policies permit a connection between two addresses. It implements the
// documentation of the API pod by pod and policy by policy, and shares no code with Compile. An
// address without a pod is outside the cluster.
func allows(w Input, from, to netip.Addr, protocol corev1.Protocol, port int32) bool {
	sender, receiver := owner(w, from), owner(w, to)
	if sender != nil && sender == receiver {
		return true // a pod cannot block access to itself
	}
	return side(w, networkingv1.PolicyTypeEgress, sender, to, receiver, receiver, protocol, port) &&
		side(w, networkingv1.PolicyTypeIngress, receiver, from, sender, receiver, protocol, port)
}

// side reports whether the policies of the direction t permit a connection between pod and the
// other end, which has an address and is peer if it is a pod. The pod that accepts the connection
// is receiver. The policies permit the connection if pod is nil, if none of them selects pod, or if
// a rule of a policy that selects pod permits the other end and the port.
func side(
	w Input, t networkingv1.PolicyType, pod *corev1.Pod, address netip.Addr, peer, receiver *corev1.Pod, protocol corev1.Protocol, port int32,
) bool {
	if pod == nil {
		return true
	}
	isolated := false
	for _, p := range w.Policies {
		types := p.Spec.PolicyTypes
		if types == nil && len(p.Spec.Egress) > 0 {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
		} else if types == nil {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		}
		if p.Namespace != pod.Namespace || !slices.Contains(types, t) || !fits(p.Spec.PodSelector, pod.Labels) {
			continue
		}
		isolated = true
		if t == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				if peerFits(w, p.Namespace, r.From, address, peer) && portFits(r.Ports, receiver, protocol, port) {
					return true
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if peerFits(w, p.Namespace, r.To, address, peer) && portFits(r.Ports, receiver, protocol, port) {
				return true
			}
		}
	}
	return !isolated
}

// peerFits reports whether a rule of a policy in a namespace permits an address, which is that of
// pod. A rule without peers permits every address.
func peerFits(w Input, namespace string, peers []networkingv1.NetworkPolicyPeer, address netip.Addr, pod *corev1.Pod) bool {
	if len(peers) == 0 {
		return true
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			in := netip.MustParsePrefix(p.IPBlock.CIDR).Contains(address)
			for _, e := range p.IPBlock.Except {
				in = in && !netip.MustParsePrefix(e).Contains(address)
			}
			if in {
				return true
			}
			continue
		}
		if pod == nil || p.PodSelector == nil && p.NamespaceSelector == nil {
			continue
		}
		if p.NamespaceSelector == nil && pod.Namespace != namespace {
			continue
		}
		if p.NamespaceSelector != nil && !slices.ContainsFunc(w.Namespaces, func(n *corev1.Namespace) bool {
			return n.Name == pod.Namespace && fits(*p.NamespaceSelector, n.Labels)
		}) {
			continue
		}
		if p.PodSelector == nil || fits(*p.PodSelector, pod.Labels) {
			return true
		}
	}
	return false
}

// portFits reports whether a rule permits a port. A named port is a port of the pod receiver.
func portFits(ports []networkingv1.NetworkPolicyPort, receiver *corev1.Pod, protocol corev1.Protocol, port int32) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		if p.Protocol == nil && protocol != corev1.ProtocolTCP || p.Protocol != nil && *p.Protocol != protocol {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.StrVal != "":
			if receiver == nil {
				continue
			}
			for _, c := range receiver.Spec.Containers {
				for _, have := range c.Ports {
					if have.Name == p.Port.StrVal && have.Protocol == protocol && have.ContainerPort == port {
						return true
					}
				}
			}
		case p.EndPort == nil && port == p.Port.IntVal, p.EndPort != nil && p.Port.IntVal <= port && port <= *p.EndPort:
			return true
		}
	}
	return false
}

func fits(s metav1.LabelSelector, have map[string]string) bool {
	for k, v := range s.MatchLabels {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		got, ok := have[e.Key]
		in := ok && slices.Contains(e.Values, got)
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			ok = in
		case metav1.LabelSelectorOpNotIn:
			ok = !in
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !ok
		}
		if !ok {
			return false
		}
	}
	return true
}

// owner returns the pod with the address a, or nil if there is none. It ignores pods that policies
// cannot select: pods of the host network, and pods that have ended.
func owner(w Input, a netip.Addr) *corev1.Pod {
	for _, p := range w.Pods {
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: a.String()}) {
			return p
		}
	}
	return nil
}

// packet is a forwarded packet: the first packet of a connection, or a later one if established is
// true.
type packet struct {
	from, to    netip.Addr
	protocol    uint8
	port        uint16
	in, out     string // the links
	established bool
	neighbour   bool // a message of neighbor discovery
}

// passes reports whether the table accepts a forwarded packet.
func passes(t Table, p packet) bool {
	hooks := slices.DeleteFunc(slices.Clone(t.Chains), func(c Chain) bool { return !c.Forward })
	slices.SortFunc(hooks, func(a, b Chain) int { return int(a.Priority - b.Priority) })
	for _, c := range hooks {
		if verdict, done := walk(t, c, p); done && verdict == Drop {
			return false
		}
	}
	return true
}

// walk returns the verdict of a chain for the packet. It returns false if the packet reaches the
// end of the chain without a verdict.
func walk(t Table, c Chain, p packet) (Verdict, bool) {
	for _, r := range c.Rules {
		chain, all := "", true
		for _, m := range r.Matches {
			next, ok := test(t, m, p)
			chain, all = next, all && ok
		}
		if !all {
			continue
		}
		switch r.Verdict {
		case Accept, Drop:
			return r.Verdict, true
		case GotoReturn: // After a goto, a return from the target chain ends this chain, too.
			return walk(t, chainOf(t, chain), p)
		}
		if verdict, done := walk(t, chainOf(t, r.Chain), p); done {
			return verdict, true
		}
	}
	return Accept, false
}

func chainOf(t Table, name string) Chain {
	return t.Chains[slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == name })]
}

// test reports whether the packet matches m. If the set of m is a map, test also returns the chain
// to which the map leads for this packet.
func test(t Table, m Match, p packet) (string, bool) {
	var look netip.Addr
	switch m.Test {
	case Established:
		return "", p.established
	case NeighborDiscovery:
		return "", p.neighbour
	case In:
		return "", (p.in == m.Link) != m.Not
	case Out:
		return "", (p.out == m.Link) != m.Not
	case Ports:
		return "", p.protocol == m.Protocol && m.First <= p.port && p.port <= m.Last
	case Source:
		look = p.from
	case Self:
		if look = p.from; p.from != p.to {
			return "", false
		}
	default:
		look = p.to
	}
	if look.Is6() != m.V6 {
		return "", false
	}
	set := t.Sets[slices.IndexFunc(t.Sets, func(s Set) bool { return s.Name == m.Set })]
	for _, e := range set.Elements {
		in := e.Address == look
		switch set.Kind {
		case Blocks:
			in = e.Address.Compare(look) <= 0 && look.Compare(e.Last) <= 0
		case Endpoints:
			in = in && e.Protocol == p.protocol && e.Port == p.port
		}
		if in {
			return e.Chain, !m.Not
		}
	}
	return "", m.Not
}

// pick returns one of the values at random.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }
