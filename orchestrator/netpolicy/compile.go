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

// Input determines a node's table.
type Input struct {
	Node   string // the node of the table
	Bridge string // the link of its pods
	// the link of packets from other nodes' pods; empty if they can use any link
	Tunnel  string
	Cluster []netip.Prefix // the cluster's pod ranges
	// each node's ranges; an address outside its node's ranges is not a pod's address
	Ranges     map[string][]netip.Prefix
	Pods       []*corev1.Pod // of all nodes
	Namespaces []*corev1.Namespace
	Policies   []*networkingv1.NetworkPolicy
}

// Names of the chains with a hook, and of their sets for each family; see family.
const (
	egress  = "egress"
	ingress = "ingress"
	local   = "local"   // addresses of this node's pods
	self    = "self"    // the same, as pairs
	cluster = "cluster" // the cluster's pod ranges
)

// Compile returns the table for the node, and the problems of parts of policies that have no effect
// because the API server would reject them. It returns the same table for the same input, in any
// order of its lists. Without a policy the table is empty.
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

// maxTotalSize bounds the policies of all namespaces in a node's table, in bytes of the message to
// the kernel. The kernel accepts a table only in one message, and if the message were longer than a
// socket may send (kernel_linux.go), no policy would be enforced. The pods of the namespace with
// the largest policies are cut off instead.
const maxTotalSize = 64 << 20

// The maximal size of an element of a set and of a rule in that message, in bytes: a rule with a
// jump to a chain with the longest name.
const (
	elementSize = 100
	ruleSize    = 512
)

// compile makes the table. Policies of closed namespaces allow nothing.
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

// DenyAll returns the table of a node that does not know the cluster's objects yet: packets from
// and to its pods are not forwarded.
func DenyAll(w Input) Table {
	w.Pods = nil
	c := compiler{Input: w}
	c.gates()
	return c.table
}

// pod is the relevant part of a Pod.
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
	labels   map[string]labels.Set // of namespaces
	pods     []pod
	table    Table
	problems []error
	// by namespace: the size of its policies in the table, in elements and rules
	spent map[string]int
	size  map[string]int // the same in bytes, with the rules that jump to them
	// namespaces with too large policies, which allow nothing here
	closed map[string]int
	// by direction: the chains of the policies that select an address
	to map[string]map[netip.Addr][]string
}

// read returns the relevant part of a Pod. It returns false for a Pod without an address of its own
// and for a Pod that has ended.
func (c *compiler) read(p *corev1.Pod) (pod, bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return pod{}, false
	}
	out := pod{namespace: p.Namespace, labels: p.Labels, local: p.Spec.NodeName == c.Node}
	for _, ip := range p.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			continue // the API server accepts only addresses
		}
		a = a.Unmap()
		if slices.ContainsFunc(c.Ranges[p.Spec.NodeName], func(r netip.Prefix) bool { return r.Contains(a) }) {
			out.addresses = append(out.addresses, a)
		}
	}
	containers := slices.Clone(p.Spec.Containers)
	for _, i := range p.Spec.InitContainers { // sidecar containers
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

// policy adds the chains of a policy that selects a pod of this node. Invalid parts of it select
// and allow nothing.
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
						// subject to policies that allow nothing
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

// rule is a rule of a policy, of either direction.
type rule struct {
	name      string // prefix of its chains and sets
	direction string
	namespace string
	targets   []pod // the pods that the policy selects
	peers     []networkingv1.NetworkPolicyPeer
	ports     []networkingv1.NetworkPolicyPort
}

// rule returns rules that accept packets of the rule's peers and ports, and adds their sets and
// chains to the table.
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
	// Named ports of an egress rule belong to the peers, so their set already contains the peers.
	only := r.direction == egress && len(r.ports) > 0 && len(numbers) == 0
	// The peers' sets depend only on the policy and not on the present pods: an empty set keeps its
	// rule.
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
// Without a bound, a user with the right to write policies could exhaust the memory of the node's
// process, or cause a table that the kernel rejects, and then no policy would be enforced. 100
// policies that each admit 2500 pods are half of it.
const maxNamespaceItems = 1 << 19

// affordable reports whether the bound permits a rule, and counts the rule.
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

// has returns a function that reports whether an address belongs to a peer.
func (p parties) has() func(netip.Addr) bool {
	selected := map[netip.Addr]bool{}
	for _, pod := range p.pods {
		for _, a := range pod.addresses {
			selected[a] = true
		}
	}
	return func(a netip.Addr) bool { return p.all || selected[a] || p.blocks.Contains(a) }
}

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
	for _, one := range c.pods { // once, even if several selectors match
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

// selector returns a function that reports whether a peer's selectors match a pod.
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

// block returns a range without its exceptions.
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

// portsOf returns a rule's ports without duplicates: matches of numbers, and names.
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

// distinct returns the distinct values in the order of their first occurrence; nil without values.
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

// endpoints returns the addresses and ports of pods with the named ports. If has is not nil, it
// selects the addresses.
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

// gates adds the chains with a hook and their sets. A packet has to pass both chains: its sender's
// egress and its destination's ingress.
//
// Packets from the bridge with a source that is not a known pod's address are dropped, and so are
// packets to the bridge with a destination that is not a known pod's address. So a new pod can
// neither send nor receive before the node knows it and its policies, and no pod escapes its
// policies with another source address. If the cluster has a tunnel, packets with a source in the
// cluster's pod ranges must arrive by the tunnel or the bridge.
func (c *compiler) gates() {
	out, in := hook(egress, -1), hook(ingress, 0)
	bridged := []Match{{Test: In, Link: c.Bridge}, {Test: Out, Link: c.Bridge}}
	pass := []Rule{
		{Matches: []Match{{Test: Established}}, Verdict: Accept},
		// Only among the bridge's pods: routed packets, or all packets of the protocol, would
		// bypass every policy.
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
	var known, closed, follow [2][]Rule // of both chains
	for _, v6 := range []bool{false, true} {
		addresses := addressesOf(mine, v6)
		pods := c.add(local, Addresses, v6, addresses)
		pairs := c.add(self, Pairs, v6, slices.Clone(addresses))
		// A packet from another link with a pod's own address as its source is not the pod's.
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

// subjects adds the map from addresses that policies of a direction select to a chain that jumps to
// all these policies, and returns its name. Pods with the same policies share the chain.
func (c *compiler) subjects(direction string, v6 bool) string {
	var elements []Element
	for _, a := range slices.SortedFunc(maps.Keys(c.to[direction]), netip.Addr.Compare) {
		if a.Is6() != v6 {
			continue
		}
		// two pods may claim an address for a while
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

// add adds a set and returns its name.
func (c *compiler) add(name string, kind Kind, v6 bool, elements []Element) string {
	name += map[bool]string{false: "4", true: "6"}[v6]
	c.table.Sets = append(c.table.Sets, Set{Name: name, Kind: kind, V6: v6, Elements: ordered(elements)})
	return name
}

func (c *compiler) problem(r rule, err error) {
	c.problems = append(c.problems, fmt.Errorf("%s: %w", r.name, err))
}

func hook(name string, priority int32) Chain {
	return Chain{Name: name, Forward: true, Priority: priority}
}

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

// protocol returns the number of a protocol; the default is TCP.
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

// maxNameLen bounds names: the kernel's limit is 255 bytes (NFT_NAME_MAXLEN), and sets add a few.
const maxNameLen = 200

// name returns the name of a policy's chain. Names in nft(8) consist of letters, digits, / - _ and
// dots.
func name(direction, namespace, policy string) string {
	out := direction + "/" + namespace + "/" + policy
	if len(out) > maxNameLen {
		out = out[:maxNameLen-20] + "-" + short(out)
	}
	return out
}

// short returns a hash of text in 16 characters.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
