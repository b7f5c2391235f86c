package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// clusterValidator checks the Cluster document.
type clusterValidator struct {
	checks
	cfg *Config
}

func (v clusterValidator) cluster(c *Cluster) {
	v.objectName("Cluster.metadata.name", c.Metadata.Name)
	v.limits("Cluster", reflect.ValueOf(*c))
	const spec = "Cluster.spec"
	v.controlPlanes(spec+".controlPlanes", c.Spec.ControlPlanes)
	v.virtualAddresses(spec+".virtualAddresses", &c.Spec)
	v.ranges(spec+".networks", &c.Spec.Networks)
	pools := poolValidator{checks: v.checks, cluster: clusterRanges(&c.Spec.Networks)}
	pools.pools(spec+".networks.loadBalancer.pools", c.Spec.Networks.LoadBalancer.Pools)
	v.announceAPI(spec+".networks.announceAPI", &c.Spec)
	pools.externalIPs(spec+".networks.externalIPs", c.Spec.Networks.ExternalIPs)
	v.external(spec+".external", &c.Spec)
	dnsValidator{v.checks, v.cfg, &c.Spec.Networks}.clusterDNS(spec+".dns", &c.Spec.DNS)
	v.pki(spec+".pki", &c.Spec)
	v.snapshots(spec+".etcd.snapshots", &c.Spec.Etcd.Snapshots)
	if r := c.Spec.LocalVolumes.Reserve; r != 0 && r < 256<<20 {
		v.on(spec+".localVolumes.reserve", wrong{reason: r.String() + " is too little for the system", expected: "at least 256MiB"})
	}
	k := &c.Spec.Kubernetes
	const kube = spec + ".kubernetes"
	v.apiServer(kube+".apiServer", k)
	v.kms(kube+".apiServer.kms", k.APIServer.KMS, &c.Spec.Networks)
	v.audit(kube+".audit.rules", k.Audit.Rules)
	v.sealedPolicies(kube+".sealedPolicies", k)
	v.scheduler(kube+".scheduler.profiles", k.Scheduler.Profiles)
	v.featureGates(kube+".featureGates", &c.Spec)
	v.kubelet(kube+".kubelet", &c.Spec)
	v.namespaces(kube+".podSecurity.exemptNamespaces", k.PodSecurity.ExemptNamespaces)
	if o := k.MachineObjects; o.Inventory && !o.Enabled {
		v.on(kube+".machineObjects.inventory", wrong{reason: "has no effect without objects of machines", expected: "enabled: true beside it"})
	}
	if o := k.MachineObjects; o.Claims && !(o.Inventory && c.Spec.JoinRequests) {
		v.on(kube+".machineObjects.claims", wrong{reason: "has no effect without descriptions and join requests of waiting machines", expected: "inventory: true beside it, and Cluster.spec.joinRequests: true"})
	}
	access := accessValidator{v.checks}
	access.authentication(kube+".authentication", &k.Authentication)
	access.authorization(kube+".authorization", &k.Authorization)
}

func (v clusterValidator) controlPlanes(path string, list []netip.Addr) {
	const most = 16 // bounded because each machine connects to each of these addresses
	if len(list) > most {
		v.on(path, wrong{reason: fmt.Sprintf("%d addresses", len(list)), expected: fmt.Sprintf("at most %d", most)})
	}
	for i, a := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if a.IsValid() && !isHost(a) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is not the address of a single machine", a), expected: "the address in its certificate"})
		}
		if slices.Contains(list[:i], a) && a.IsValid() {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", a)})
		}
	}
}

// virtualAddresses validates the virtual addresses. Whether an address is in a range of the cluster
// is checked elsewhere (otherAddresses).
func (v clusterValidator) virtualAddresses(path string, spec *ClusterSpec) {
	if len(spec.VirtualAddresses) > 0 && len(spec.ControlPlanes) == 0 {
		v.on(path, wrong{reason: "controlPlanes is empty, so no machine can hold the address", expected: "Cluster.spec.controlPlanes with all control-plane machines"})
	}
	for i, a := range spec.VirtualAddresses {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !a.IsValid() {
			continue
		}
		if !isHost(a) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is not an address that a machine can hold", a), expected: "a unicast address of the machines' network"})
			continue
		}
		if slices.ContainsFunc(spec.VirtualAddresses[:i], func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is a second %s address", a, family(netip.PrefixFrom(a, 0))), expected: "at most one per address family"})
		}
		if slices.Contains(spec.ControlPlanes, a) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is the address of a control-plane machine", a), expected: "an address that no machine has"})
		}
		if field := v.fieldWithAddress(a); field != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s is also %s", a, field), expected: "an address that no machine has"})
		}
		if !v.hasFamily(a, spec) {
			v.on(at, wrong{
				reason:   fmt.Sprintf("no machine is known to have an %s address", family(netip.PrefixFrom(a, 0))),
				expected: "an address of a family that Cluster.spec.controlPlanes, the pod ranges or the machine's links have",
			})
		}
	}
}

// external rejects duplicates, and settings for a built-in component that is replaced.
func (v clusterValidator) external(path string, spec *ClusterSpec) {
	for i, part := range spec.External {
		if slices.Contains(spec.External[:i], part) && part != "" {
			v.on(fmt.Sprintf("%s[%d]", path, i), wrong{reason: fmt.Sprintf("%s is given twice", quote(string(part)))})
		}
	}
	if spec.HasExternal(PartNetwork) && spec.Networks.Encapsulation != EncapsulationWireGuard {
		v.on("Cluster.spec.networks.encapsulation", wrong{
			reason:   "applies only to the built-in network, which Cluster.spec.external replaces",
			expected: "the setting in the configuration of the replacement",
		})
	}
	if spec.HasExternal(PartDNS) && len(spec.DNS.Upstreams)+len(spec.DNS.StubDomains) > 0 {
		v.on(path, wrong{
			reason:   "dns is external, and Cluster.spec.dns applies only to the built-in DNS",
			expected: "resolvers and domains in the configuration of the replacement",
		})
	}
}

// fieldWithAddress returns the field of the Network document that contains a as an address of this
// machine, a gateway or a resolver; "" if there is none.
func (v clusterValidator) fieldWithAddress(a netip.Addr) string {
	spec := &v.cfg.Network.Spec
	for i, l := range spec.Links {
		for j, own := range l.Addresses {
			if own.Addr() == a {
				return fmt.Sprintf("Network.spec.links[%d].addresses[%d]", i, j)
			}
		}
		for j, r := range l.Routes {
			if r.Via == a {
				return fmt.Sprintf("Network.spec.links[%d].routes[%d].via", i, j)
			}
		}
	}
	if i := slices.Index(spec.DNS.Servers, a); i >= 0 {
		return fmt.Sprintf("Network.spec.dns.servers[%d]", i)
	}
	return ""
}

// hasFamily reports whether the documents show that machines of the cluster have addresses of the
// family of a.
func (v clusterValidator) hasFamily(a netip.Addr, spec *ClusterSpec) bool {
	same := func(b netip.Addr) bool { return b.IsValid() && b.Is4() == a.Is4() }
	inside := func(r netip.Prefix) bool { return same(r.Addr()) }
	return slices.ContainsFunc(spec.ControlPlanes, same) || slices.ContainsFunc(spec.Networks.Pods, inside) ||
		slices.ContainsFunc(v.cfg.Network.Spec.Links, func(l Link) bool { return slices.ContainsFunc(l.Addresses, inside) })
}

// ranges validates the pod and service ranges and the domain.
func (v clusterValidator) ranges(path string, n *ClusterNetworks) {
	v.families(path+".pods", n.Pods)
	v.families(path+".services", n.Services)
	for i, r := range n.Pods {
		v.podRange(fmt.Sprintf("%s.pods[%d]", path, i), r)
	}
	for i, r := range n.Services {
		v.serviceRange(fmt.Sprintf("%s.services[%d]", path, i), r, n.Pods)
	}
	// The first range of each list determines the primary family of nodes and pods. If both lists
	// have two ranges, the API server and the controllers require the same order of families.
	if len(n.Pods) > 0 && len(n.Services) > 0 && usable(n.Pods[0]) && usable(n.Services[0]) && len(n.Pods) == len(n.Services) && !sameFamily(n.Pods[0], n.Services[0]) {
		v.on(path+".services", wrong{
			reason:   fmt.Sprintf("the first service range is %s, the first pod range is %s", family(n.Services[0]), family(n.Pods[0])),
			expected: "the same order of families",
		})
	}
	if err := hostname(n.Domain); err != nil && n.Domain != "" {
		v.on(path+".domain", wrong{reason: fmt.Sprintf("%s %v", quote(n.Domain), err), expected: "a DNS domain in lower case, such as cluster.local"})
	}
}

// families checks that the list has at most one range per address family and is not empty, and that
// each range is a unicast network.
func (v clusterValidator) families(path string, ranges []netip.Prefix) {
	if len(ranges) == 0 {
		v.on(path, wrong{reason: "is empty", expected: "one range per address family"})
	}
	if len(ranges) > 2 {
		v.on(path, wrong{reason: fmt.Sprintf("%d ranges", len(ranges)), expected: "one per address family"})
	}
	for i, r := range ranges {
		at := fmt.Sprintf("%s[%d]", path, i)
		if !r.IsValid() {
			continue
		}
		if r.Addr().Is4In6() {
			v.on(at, mapped(r))
			continue
		}
		if r.Masked() != r {
			v.on(at, wrong{reason: fmt.Sprintf("%s is an address in a network, not a network", r), expected: "a network", nearest: r.Masked().String()})
		}
		if a := r.Addr(); a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
			v.on(at, wrong{reason: fmt.Sprintf("%s cannot be routed", r), expected: "a unicast network"})
		}
		if i == 1 && ranges[0].IsValid() && sameFamily(ranges[0], r) && len(ranges) == 2 {
			v.on(at, wrong{reason: "a second " + family(r) + " range", expected: "one per address family"})
		}
	}
}

// podRange checks that the controllers can divide a pod range. The controllers give each machine a
// /24 (IPv4) or a /64 (IPv6), and support at most 16 bits for the number of an IPv6 subnet
// (k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset).
func (v clusterValidator) podRange(path string, r netip.Prefix) {
	shortest, longest := 8, 24
	if !r.Addr().Is4() {
		shortest, longest = 48, 64
	}
	if r.IsValid() && (r.Bits() < shortest || r.Bits() > longest) {
		v.on(path, wrong{
			reason:   fmt.Sprintf("the prefix length %d of an %s pod range is out of range", r.Bits(), family(r)),
			expected: fmt.Sprintf("/%d to /%d; each machine gets a /%d of it", shortest, longest, longest),
		})
	}
}

// serviceRange checks the size of a service range, and that a pod range has the same family. The
// range must contain the address of the cluster's DNS, which is its tenth address.
func (v clusterValidator) serviceRange(path string, r netip.Prefix, pods []netip.Prefix) {
	if !r.IsValid() {
		return
	}
	// smallest is the minimum number of host bits. With 4 bits, the range contains its tenth
	// address, the cluster's DNS.
	const smallest = 4
	if r.Addr().BitLen()-r.Bits() < smallest {
		v.on(path, wrong{
			reason:   fmt.Sprintf("the prefix length %d leaves no room for the cluster's own services", r.Bits()),
			expected: fmt.Sprintf("/%d or shorter", r.Addr().BitLen()-smallest),
		})
	}
	shortest := 8
	if r.Addr().Is6() {
		// Kubernetes cannot allocate from a larger range
		// (pkg/registry/core/service/ipallocator, New)
		shortest = 64
	}
	if r.Bits() < shortest {
		v.on(path, wrong{reason: fmt.Sprintf("the prefix length %d takes too much of the address space", r.Bits()), expected: fmt.Sprintf("/%d or longer", shortest)})
	}
	noPodRange := len(pods) > 0
	for _, pod := range pods {
		if !pod.IsValid() || sameFamily(pod, r) {
			noPodRange = false
		}
	}
	if noPodRange {
		v.on(path, wrong{reason: fmt.Sprintf("an %s service range, but no pod has an %s address", family(r), family(r)), expected: "a pod range of the same family, or no such service range"})
	}
}

// pki validates the CAs and the keys of the cluster. A control-plane machine has all required CAs
// with their keys. A worker has the certificates of two CAs and no key.
func (v clusterValidator) pki(path string, spec *ClusterSpec) {
	controlPlane := v.cfg.Machine.Spec.Role == RoleControlPlane
	worker := v.cfg.Machine.Spec.Role == RoleWorker
	for _, a := range spec.PKI.authorities() {
		at := path + "." + a.name
		v.root(at+".cert", a.pair.Cert, a.signs)
		v.pair(at, a.pair)
		v.signingKey(at+".key", a.pair.Key)
		for i, c := range a.accepted {
			v.root(acceptedPath(path, a.name, i), c, a.signs)
			if a.pair.Cert.IsZero() {
				v.on(acceptedPath(path, a.name, i), wrong{reason: "the issuing CA is missing", expected: "pki." + a.name + ".cert, or an empty list"})
			}
		}
		if a.pair.Cert.IsZero() && (controlPlane || worker && a.everywhere) && !a.optional {
			v.on(at+".cert", wrong{reason: "missing", expected: "the certificate in PEM"})
		}
		if a.pair.Key.IsZero() && controlPlane && !a.optional {
			v.on(at+".key", wrong{reason: "missing", expected: "the private key in PEM: a control plane issues certificates"})
		}
		if worker {
			v.notOnWorker(at+".key", a.pair.Key.IsZero())
		}
	}
	if spec.PKI.ServiceAccountKey.IsZero() && controlPlane {
		v.on(path+".serviceAccountKey", wrong{reason: "missing", expected: "a private key in PEM"})
	}
	if worker {
		v.notOnWorker(path+".serviceAccountKey", spec.PKI.ServiceAccountKey.IsZero())
		v.notOnWorker("Cluster.spec.secretsEncryptionKey", spec.SecretsEncryptionKey.IsZero())
		v.notOnWorker("Cluster.spec.acceptedEncryptionKeys", len(spec.AcceptedEncryptionKeys) == 0)
		v.notOnWorker("Cluster.spec.etcd.snapshots.target", spec.Etcd.Snapshots.Target == nil)
	}
	v.signingKey(path+".serviceAccountKey", spec.PKI.ServiceAccountKey)
	if spec.SecretsEncryptionKey.IsZero() && controlPlane {
		v.on("Cluster.spec.secretsEncryptionKey", wrong{reason: "missing", expected: "32 random bytes in base64"})
	}
	const most = 4
	if n := len(spec.AcceptedEncryptionKeys); n > most {
		v.on("Cluster.spec.acceptedEncryptionKeys", wrong{reason: fmt.Sprintf("has %d keys", n), expected: fmt.Sprintf("at most %d", most)})
	}
	for i, key := range spec.AcceptedEncryptionKeys {
		same := func(k EncryptionKey) bool { return k.Name() == key.Name() }
		if same(spec.SecretsEncryptionKey) || slices.ContainsFunc(spec.AcceptedEncryptionKeys[:i], same) {
			v.on(fmt.Sprintf("Cluster.spec.acceptedEncryptionKeys[%d]", i), wrong{reason: "is a duplicate", expected: "a key other than secretsEncryptionKey and the previous keys"})
		}
	}
}

// notOnWorker rejects a field with a key of the cluster in the configuration of a worker, because a
// stolen disk of a worker must not compromise the cluster. missing means that the field is not set.
func (v clusterValidator) notOnWorker(path string, missing bool) {
	if !missing {
		v.on(path, wrong{reason: "a worker holds no key of the cluster", expected: "no value; `orlopctl nodes add` writes a worker's configuration"})
	}
}
