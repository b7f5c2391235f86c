package netpolicy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Input is the state of a cluster from which Compile makes the table of a node.
type Input struct {
	Node   string // the node of the table
	Bridge string // the link of the node's pods
	// the link on which packets from pods of other nodes arrive; empty if these packets can arrive
	// on any link
	Tunnel  string
	Cluster []netip.Prefix // the cluster's pod ranges
	// each node's pod ranges; Compile ignores an address of a pod outside the ranges of the pod's
	// node
	Ranges     map[string][]netip.Prefix
	Pods       []*corev1.Pod // of all nodes
	Namespaces []*corev1.Namespace
	Policies   []*networkingv1.NetworkPolicy
}

// Names of the chains with a hook, and of the sets that those chains use. A set has a name for each
// family; see the method add.
const (
	egress  = "egress"
	ingress = "ingress"
	local   = "local"   // the addresses of this node's pods
	self    = "self"    // pairs: the address of a pod of this node as source and as destination
	cluster = "cluster" // the cluster's pod ranges
)

// Compile returns the table for the node. The problems name the invalid parts of policies: the API
// server should have rejected them, and they allow nothing. Problems also name the namespaces with
// too large policies. The order of the lists in the input does not change the table. Without a
// policy the table is empty.
func Compile(w Input) (Table, []error) {
	if len(w.Policies) == 0 {
		return Table{}, nil
	}
	c := compile(w, nil)
	all := 0
	for _, size := range c.size {
		all += size
	}
	if all <= maxTotalSize {
		return c.table, c.problems
	}
	closed := map[string]int{}
	for _, namespace := range slices.SortedFunc(maps.Keys(c.size), func(a, b string) int { return cmp.Or(c.size[b]-c.size[a], strings.Compare(a, b)) }) {
		if all <= maxTotalSize {
			break
		}
		closed[namespace] = c.size[namespace]
		all -= closed[namespace]
	}
	c = compile(w, closed)
	for _, namespace := range slices.Sorted(maps.Keys(closed)) {
		c.problems = append(c.problems, fmt.Errorf("the policies of all namespaces exceed %d MiB on this node, and those of namespace %s are the largest, %d MiB: its pods here are cut off, as if its policies allowed nothing",
			maxTotalSize>>20, namespace, closed[namespace]>>20))
	}
	return c.table, c.problems
}

// maxTotalSize bounds the policies of all namespaces in a node's table, in bytes of the netlink
// message to the kernel. The kernel accepts a table only in a single message. If the message were
// longer than the send buffer of the socket (kernel_linux.go), no policy would be enforced. So
// Compile cuts off the pods of the namespaces with the largest policies.
const maxTotalSize = 64 << 20

// The largest sizes of a set element and of a rule in the netlink message, in bytes. The largest
// rule jumps to a chain with the longest name.
const (
	elementSize = 100
	ruleSize    = 512
)

// compile makes the table. The map closed contains the namespaces whose policies allow nothing.
func compile(w Input, closed map[string]int) compiler {
	c := compiler{
		Input: w, labels: map[string]labels.Set{}, spent: map[string]int{}, size: map[string]int{}, closed: closed,
		to: map[string]map[netip.Addr][]string{egress: {}, ingress: {}},
	}
	for _, n := range w.Namespaces {
		c.labels[n.Name] = n.Labels
	}
	for _, p := range w.Pods {
		if read, ok := c.read(p); ok {
			c.pods = append(c.pods, read)
		}
	}
	for _, p := range slices.SortedFunc(slices.Values(w.Policies), func(a, b *networkingv1.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	}) {
		if err := c.policy(p); err != nil {
			c.problems = append(c.problems, fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	c.gates()
	return c
}

// DenyAll returns the table of a node that has not read the cluster's objects yet. The table drops
// all forwarded packets from and to the node's pods.
func DenyAll(w Input) Table {
	w.Pods = nil
	c := compiler{Input: w}
	c.gates()
	return c.table
}

// pod contains the fields of a Pod that the table depends on.
type pod struct {
	namespace string
	labels    labels.Set
	addresses []netip.Addr
	ports     []endpoint
	local     bool
}

// endpoint is a named port of a pod.
type endpoint struct {
	name     string
	protocol uint8
	port     uint16
}

type compiler struct {
	Input
	labels   map[string]labels.Set // the labels of each namespace
	pods     []pod
	table    Table
	problems []error
	// by namespace: the number of elements and rules of its policies in the table
	spent map[string]int
	// by namespace: the size of its policies in bytes, including the rules that jump to the
	// policies
	size map[string]int
	// by namespace with too large policies: the size of the policies in bytes; these policies allow
	// nothing on this node
	closed map[string]int
	// by direction: for each address, the chains of the policies that select its pod
	to map[string]map[netip.Addr][]string
}

// read returns the fields of a Pod that the table depends on. It returns false for a Pod that has
// ended and for a Pod without an address of its own.
func (c *compiler) read(p *corev1.Pod) (pod, bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return pod{}, false
	}
	out := pod{namespace: p.Namespace, labels: p.Labels, local: p.Spec.NodeName == c.Node}
	for _, ip := range p.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue // cannot happen, because the API server accepts only addresses
		}
		a = a.Unmap()
		if slices.ContainsFunc(c.Ranges[p.Spec.NodeName], func(r netip.Prefix) bool { return r.Contains(a) }) {
			out.addresses = append(out.addresses, a)
		}
	}
	containers := slices.Clone(p.Spec.Containers)
	// An init container with this restart policy is a sidecar: it runs beside the other containers.
	for _, i := range p.Spec.InitContainers {
		if i.RestartPolicy != nil && *i.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, i)
		}
	}
	for _, container := range containers {
		for _, port := range container.Ports {
			if number, err := protocol(&port.Protocol); err == nil && port.Name != "" {
				out.ports = append(out.ports, endpoint{port.Name, number, uint16(port.ContainerPort)})
			}
		}
	}
	return out, len(out.addresses) > 0
}

// policy adds the chains of a policy if the policy selects a pod of this node. An invalid rule of
// the policy allows nothing. policy returns an error if the podSelector is invalid.
func (c *compiler) policy(p *networkingv1.NetworkPolicy) error {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		return fmt.Errorf("podSelector: cannot use: %w", err)
	}
	var targets []pod
	for _, pod := range c.pods {
		if pod.local && pod.namespace == p.Namespace && selector.Matches(pod.labels) {
			targets = append(targets, pod)
		}
	}
	if len(targets) == 0 {
		return nil
	}
	types := p.Spec.PolicyTypes
	if len(types) == 0 {
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	_, closed := c.closed[p.Namespace]
	add := func(direction string, rules []rule) {
		if closed {
			for _, t := range targets {
				for _, a := range t.addresses {
					if c.to[direction][a] == nil {
						// An address with an empty list is subject to policies that allow nothing.
						c.to[direction][a] = []string{}
					}
				}
			}
			return
		}
		chain := Chain{Name: name(direction, p.Namespace, p.Name)}
		for i, r := range rules {
			r.namespace, r.targets, r.direction, r.name = p.Namespace, targets, direction, fmt.Sprintf("%s/%d", chain.Name, i)
			chain.Rules = append(chain.Rules, c.rule(r)...)
		}
		c.table.Chains = append(c.table.Chains, chain)
		for _, t := range targets {
			for _, a := range t.addresses {
				c.to[direction][a] = append(c.to[direction][a], chain.Name)
				c.size[p.Namespace] += ruleSize + elementSize
			}
		}
	}
	if slices.Contains(types, networkingv1.PolicyTypeEgress) {
		var rules []rule
		for _, r := range p.Spec.Egress {
			rules = append(rules, rule{peers: r.To, ports: r.Ports})
		}
		add(egress, rules)
	}
	if slices.Contains(types, networkingv1.PolicyTypeIngress) {
		var rules []rule
		for _, r := range p.Spec.Ingress {
			rules = append(rules, rule{peers: r.From, ports: r.Ports})
		}
		add(ingress, rules)
	}
	return nil
}

// rule is an ingress or egress rule of a policy.
type rule struct {
	name      string // the prefix of the names of the rule's chains and sets
	direction string
	namespace string
	targets   []pod // the pods that the policy selects
	peers     []networkingv1.NetworkPolicyPeer
	ports     []networkingv1.NetworkPolicyPort
}

// rule returns the nftables rules that accept the packets of a policy's rule. It adds the sets and
// chains that these rules use to the table. It returns nil if the namespace has exceeded its bound.
func (c *compiler) rule(r rule) []Rule {
	who := c.peers(r)
	numbers, names := c.portsOf(r)
	elements := 2*len(who.pods) + len(who.blocks.Prefixes()) + len(names)
	if !c.affordable(r, 1+elements+len(numbers)) {
		return nil
	}
	c.size[r.namespace] += elementSize*elements + ruleSize*(4+len(numbers))
	from := Source
	if r.direction == egress {
		from = Destination
	}
	// A named port of an egress rule is a port of a peer. The set of named ports contains the
	// peers' addresses, so a rule with only named ports needs no sets of peers.
	only := r.direction == egress && len(r.ports) > 0 && len(numbers) == 0
	// Whether a set of peers exists depends only on the policy. If no pod matches at present, the
	// table still has the rule, with an empty set.
	var matches [][]Match
	if who.all {
		matches = append(matches, nil)
	}
	for _, v6 := range []bool{false, true} {
		if who.selects && !only {
			set := c.add(r.name+"/pods", Addresses, v6, addressesOf(who.pods, v6))
			matches = append(matches, []Match{{Test: from, Set: set, V6: v6}})
		}
		if blocks := rangesOf(who.blocks, v6); len(blocks) > 0 && !only {
			set := c.add(r.name+"/blocks", Blocks, v6, blocks)
			matches = append(matches, []Match{{Test: from, Set: set, V6: v6}})
		}
	}
	var out []Rule
	if len(r.ports) == 0 {
		for _, m := range matches {
			out = append(out, Rule{Matches: m, Verdict: Accept})
		}
		return out
	}
	if len(numbers) > 0 {
		ports := Chain{Name: r.name + "/ports"}
		for _, n := range numbers {
			ports.Rules = append(ports.Rules, Rule{Matches: []Match{n}, Verdict: Accept})
		}
		c.table.Chains = append(c.table.Chains, ports)
		for _, m := range matches {
			out = append(out, Rule{Matches: m, Verdict: Jump, Chain: ports.Name})
		}
	}
	if len(names) == 0 {
		return out
	}
	for _, v6 := range []bool{false, true} {
		if r.direction == egress {
			set := c.add(r.name+"/named", Endpoints, v6, c.endpoints(names, c.pods, v6, who.has()))
			out = append(out, Rule{Matches: []Match{{Test: DestinationEndpoint, Set: set, V6: v6}}, Verdict: Accept})
			continue
		}
		set := c.add(r.name+"/named", Endpoints, v6, c.endpoints(names, r.targets, v6, nil))
		for _, m := range matches {
			if len(m) == 0 || m[0].V6 == v6 {
				named := append(slices.Clone(m), Match{Test: DestinationEndpoint, Set: set, V6: v6})
				out = append(out, Rule{Matches: named, Verdict: Accept})
			}
		}
	}
	return out
}

// maxNamespaceItems bounds the elements and rules of a namespace's policies in a node's table.
// Without a bound, a user with the right to write policies could exhaust the memory of the process,
// or cause a table that the kernel rejects. Then no policy would be enforced. For scale, 100
// policies that each admit 2500 pods use almost the whole bound, because each pod counts twice:
// once for each address family.
const maxNamespaceItems = 1 << 19

// affordable adds the costs of a rule to the count of its namespace. It reports whether the count
// is still within maxNamespaceItems. The first rule over the bound is reported as a problem.
func (c *compiler) affordable(r rule, costs int) bool {
	before := c.spent[r.namespace]
	if before > maxNamespaceItems {
		return false // already reported
	}
	if c.spent[r.namespace] = before + costs; before+costs <= maxNamespaceItems {
		return true
	}
	c.spent[r.namespace] = maxNamespaceItems + 1
	c.problem(r, fmt.Errorf("the policies of namespace %s have more than %d peers and ports on this node; this and all later rules allow nothing", r.namespace, maxNamespaceItems))
	return false
}

// parties are the peers of a rule.
type parties struct {
	all     bool // all addresses
	selects bool // the rule has a selector
	pods    []pod
	blocks  *netipx.IPSet
}

// The method has returns a function that reports whether an address belongs to a peer.
func (p parties) has() func(netip.Addr) bool {
	selected := map[netip.Addr]bool{}
	for _, pod := range p.pods {
		for _, a := range pod.addresses {
			selected[a] = true
		}
	}
	return func(a netip.Addr) bool { return p.all || selected[a] || p.blocks.Contains(a) }
}

// peers returns the peers of a rule. It reports an invalid peer as a problem and omits it.
func (c *compiler) peers(r rule) parties {
	out := parties{all: len(r.peers) == 0, blocks: &netipx.IPSet{}}
	var blocks netipx.IPSetBuilder
	var selectors []func(pod) bool
	for _, p := range r.peers {
		if p.IPBlock != nil {
			if b, err := block(p.IPBlock); err != nil {
				c.problem(r, err)
			} else {
				blocks.AddSet(b)
			}
			continue
		}
		out.selects = true
		selects, err := c.selector(r.namespace, p)
		if err != nil {
			c.problem(r, err)
			continue
		}
		selectors = append(selectors, selects)
	}
	for _, one := range c.pods { // Each pod is added once, even if several selectors match it.
		if slices.ContainsFunc(selectors, func(selects func(pod) bool) bool { return selects(one) }) {
			out.pods = append(out.pods, one)
		}
	}
	if set, err := blocks.IPSet(); err != nil {
		c.problem(r, fmt.Errorf("ipBlock: cannot use: %w", err))
	} else {
		out.blocks = set
	}
	return out
}

// selector returns a function that reports whether the selectors of a peer match a pod. A peer
// without a namespaceSelector matches only pods of the given namespace.
func (c *compiler) selector(namespace string, p networkingv1.NetworkPolicyPeer) (func(pod) bool, error) {
	pods := labels.Everything()
	if p.PodSelector != nil {
		var err error
		if pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
			return nil, fmt.Errorf("podSelector: cannot use: %w", err)
		}
	}
	if p.NamespaceSelector == nil {
		if p.PodSelector == nil {
			return nil, fmt.Errorf("a peer is empty; it needs a podSelector, a namespaceSelector or an ipBlock")
		}
		return func(p pod) bool { return p.namespace == namespace && pods.Matches(p.labels) }, nil
	}
	spaces, err := metav1.LabelSelectorAsSelector(p.NamespaceSelector)
	if err != nil {
		return nil, fmt.Errorf("namespaceSelector: cannot use: %w", err)
	}
	in := map[string]bool{}
	for name, l := range c.labels {
		in[name] = spaces.Matches(l)
	}
	return func(p pod) bool { return in[p.namespace] && pods.Matches(p.labels) }, nil
}

// block returns the addresses of an ipBlock: its CIDR without the exceptions.
func block(b *networkingv1.IPBlock) (*netipx.IPSet, error) {
	var set netipx.IPSetBuilder
	whole, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock: cannot use cidr: %w", err)
	}
	if whole.Addr().Is4In6() {
		return nil, fmt.Errorf("ipBlock: cannot use cidr %s: it is an IPv4 range; write it in IPv4 form", whole)
	}
	set.AddPrefix(whole.Masked())
	for _, e := range b.Except {
		without, err := netip.ParsePrefix(e)
		if err != nil {
			return nil, fmt.Errorf("ipBlock: cannot use except: %w", err)
		}
		set.RemovePrefix(without.Masked())
	}
	return set.IPSet()
}

// portsOf returns the ports of a rule without duplicates: ports with a number as matches, and ports
// with a name as endpoints without a number.
func (c *compiler) portsOf(r rule) (numbers []Match, names []endpoint) {
	for _, p := range r.ports {
		number, err := protocol(p.Protocol)
		if err != nil {
			c.problem(r, err)
			continue
		}
		switch {
		case p.Port == nil:
			numbers = append(numbers, Match{Test: Ports, Protocol: number, Last: 65535})
		case p.Port.Type == intstr.String:
			names = append(names, endpoint{name: p.Port.StrVal, protocol: number})
		default:
			m := Match{Test: Ports, Protocol: number, First: uint16(p.Port.IntVal), Last: uint16(p.Port.IntVal)}
			if p.EndPort != nil {
				m.Last = uint16(*p.EndPort)
			}
			numbers = append(numbers, m)
		}
	}
	return distinct(numbers), distinct(names)
}

// distinct returns the values without duplicates, in the order of their first occurrence.
func distinct[T comparable](values []T) []T {
	var out []T
	seen := map[T]bool{}
	for _, v := range values {
		if !seen[v] {
			out, seen[v] = append(out, v), true
		}
	}
	return out
}

// endpoints returns each address of the pods together with each port that has one of the names. If
// the function has is not nil, endpoints omits the addresses for which has returns false.
func (c *compiler) endpoints(names []endpoint, pods []pod, v6 bool, has func(netip.Addr) bool) []Element {
	var out []Element
	for _, p := range pods {
		for _, have := range p.ports {
			if !slices.Contains(names, endpoint{name: have.name, protocol: have.protocol}) {
				continue
			}
			for _, a := range p.addresses {
				if a.Is6() == v6 && (has == nil || has(a)) {
					out = append(out, Element{Address: a, Protocol: have.protocol, Port: have.port})
				}
			}
		}
	}
	return out
}

// gates adds the two chains with a hook and the sets that they use. A packet has to pass both
// chains: the egress policies of its sender and the ingress policies of its destination.
//
// The chains drop packets from the bridge if the source is not the address of a known pod of this
// node. They drop packets to the bridge if the destination is not such an address. So a new pod
// cannot send or receive before the node knows the pod and its policies, and a pod cannot escape
// its policies with a forged source address. If the cluster has a tunnel, the chains also drop a
// packet with a source in the cluster's pod ranges that arrives on another link than the tunnel or
// the bridge.
func (c *compiler) gates() {
	out, in := hook(egress, -1), hook(ingress, 0)
	bridged := []Match{{Test: In, Link: c.Bridge}, {Test: Out, Link: c.Bridge}}
	pass := []Rule{
		{Matches: []Match{{Test: Established}}, Verdict: Accept},
		// Neighbor discovery is accepted only between pods on the bridge. Without the match of the
		// bridge, neighbor-discovery packets that the node routes would bypass every policy.
		{Matches: append(slices.Clone(bridged), Match{Test: NeighborDiscovery}), Verdict: Accept},
	}
	var ranges netipx.IPSetBuilder
	for _, r := range c.Cluster {
		ranges.AddPrefix(r.Masked())
	}
	others, err := ranges.IPSet()
	if err != nil {
		c.problems = append(c.problems, fmt.Errorf("pod ranges %v: cannot use: %w", c.Cluster, err))
	}
	var mine []pod
	for _, p := range c.pods {
		if p.local {
			mine = append(mine, p)
		}
	}
	var known, closed, follow [2][]Rule // index 0: the chain egress; index 1: the chain ingress
	for _, v6 := range []bool{false, true} {
		addresses := addressesOf(mine, v6)
		pods := c.add(local, Addresses, v6, addresses)
		pairs := c.add(self, Pairs, v6, slices.Clone(addresses))
		// A pod can always reach itself. The rule matches only packets that arrive on the bridge.
		// If a packet with the address of such a pod as its source arrives on another link, another
		// machine has sent it.
		own := Rule{Matches: append(slices.Clone(bridged), Match{Test: Self, Set: pairs, V6: v6}), Verdict: Accept}
		known[0], known[1] = append(known[0], own), append(known[1], own)
		closed[0] = append(closed[0], Rule{Matches: []Match{
			{Test: In, Link: c.Bridge}, {Test: Source, Set: pods, V6: v6, Not: true},
		}, Verdict: Drop})
		closed[1] = append(closed[1], Rule{Matches: []Match{
			{Test: Out, Link: c.Bridge}, {Test: Destination, Set: pods, V6: v6, Not: true},
		}, Verdict: Drop})
		if ranges := rangesOf(others, v6); c.Tunnel != "" && len(ranges) > 0 {
			closed[1] = append(closed[1], Rule{Matches: []Match{
				{Test: In, Link: c.Bridge, Not: true}, {Test: In, Link: c.Tunnel, Not: true},
				{Test: Source, Set: c.add(cluster, Blocks, v6, ranges), V6: v6},
			}, Verdict: Drop})
		}
		follow[0] = append(follow[0], Rule{Matches: []Match{{Test: Source, Set: c.subjects(egress, v6), V6: v6}}, Verdict: GotoReturn})
		follow[1] = append(follow[1], Rule{Matches: []Match{{Test: Destination, Set: c.subjects(ingress, v6), V6: v6}}, Verdict: GotoReturn})
	}
	out.Rules = slices.Concat(pass, known[0], closed[0], follow[0])
	in.Rules = slices.Concat(pass, known[1], closed[1], follow[1])
	c.table.Chains = append(c.table.Chains, out, in)
}

// subjects adds a map for a direction and returns its name. The map has the addresses that policies
// of the direction select. It maps each address to a chain that jumps to all these policies. Pods
// with the same policies share the chain.
func (c *compiler) subjects(direction string, v6 bool) string {
	var elements []Element
	for _, a := range slices.SortedFunc(maps.Keys(c.to[direction]), netip.Addr.Compare) {
		if a.Is6() != v6 {
			continue
		}
		// For a while, two pods may have the same address. A policy that selects both pods is then
		// in the list twice.
		policies := slices.Compact(slices.Sorted(slices.Values(c.to[direction][a])))
		chain := Chain{Name: direction + "-of-" + short(strings.Join(policies, " "))}
		for _, p := range policies {
			chain.Rules = append(chain.Rules, Rule{Verdict: Jump, Chain: p})
		}
		chain.Rules = append(chain.Rules, Rule{Verdict: Drop})
		if !slices.ContainsFunc(c.table.Chains, func(have Chain) bool { return have.Name == chain.Name }) {
			c.table.Chains = append(c.table.Chains, chain)
		}
		elements = append(elements, Element{Address: a, Chain: chain.Name})
	}
	return c.add(direction+"-of", Verdicts, v6, elements)
}

// add adds a set to the table and returns the set's name: the given name, followed by 4 or 6.
func (c *compiler) add(name string, kind Kind, v6 bool, elements []Element) string {
	name += map[bool]string{false: "4", true: "6"}[v6]
	c.table.Sets = append(c.table.Sets, Set{Name: name, Kind: kind, V6: v6, Elements: ordered(elements)})
	return name
}

func (c *compiler) problem(r rule, err error) {
	c.problems = append(c.problems, fmt.Errorf("%s: %w", r.name, err))
}

// hook returns a chain with a hook for forwarded packets.
func hook(name string, priority int32) Chain {
	return Chain{Name: name, Forward: true, Priority: priority}
}

// addressesOf returns the pods' addresses of one family as elements of a set.
func addressesOf(pods []pod, v6 bool) []Element {
	var out []Element
	for _, p := range pods {
		for _, a := range p.addresses {
			if a.Is6() == v6 {
				out = append(out, Element{Address: a})
			}
		}
	}
	return out
}

// rangesOf returns the ranges of one family as elements of a set.
func rangesOf(set *netipx.IPSet, v6 bool) []Element {
	if set == nil {
		return nil
	}
	var out []Element
	for _, r := range set.Ranges() {
		if r.From().Is6() == v6 {
			out = append(out, Element{Address: r.From(), Last: r.To()})
		}
	}
	return out
}

// protocol returns the IP protocol number of a protocol, which is TCP by default. It returns an
// error for protocols other than TCP, UDP and SCTP.
func protocol(p *corev1.Protocol) (uint8, error) {
	if p == nil || *p == "" {
		return tcp, nil
	}
	for number, name := range protocols {
		if name == strings.ToLower(string(*p)) {
			return number, nil
		}
	}
	return 0, fmt.Errorf("protocol %s: is not known; use TCP, UDP or SCTP", *p)
}

// maxNameLen is the longest name of a policy's chain in bytes. The kernel's limit for names is 255
// bytes (NFT_NAME_MAXLEN), and the names of sets add a few bytes.
const maxNameLen = 200

// name returns the name of a policy's chain, shortened to maxNameLen. nft(8) accepts letters,
// digits, slashes, hyphens, underscores and dots in names.
func name(direction, namespace, policy string) string {
	out := direction + "/" + namespace + "/" + policy
	if len(out) > maxNameLen {
		out = out[:maxNameLen-20] + "-" + short(out)
	}
	return out
}

// short returns a hash of the text with 16 hexadecimal digits.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
