package main

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/trust"
)

// nodeSpec describes this node for the orchestrator. It returns an error if the machine has no
// address.
func nodeSpec(c *config.Config, state network.State, r buildinfo.Release) (nodespec.Spec, error) {
	ips := nodeAddresses(c, state)
	if len(ips) == 0 {
		return nodespec.Spec{}, errors.New("no address yet")
	}
	cluster, kube := c.Cluster.Spec, c.Cluster.Spec.Kubernetes
	own, _ := resolvers(cluster.Networks, state.Servers)
	spec := nodespec.Spec{
		Version:        r.Version,
		Cluster:        c.Cluster.Metadata.Name,
		NodeName:       c.Machine.Metadata.Name,
		NodeIPs:        ips,
		ControlPlane:   c.Machine.Spec.Role == config.RoleControlPlane,
		Endpoint:       cluster.Endpoint.String(),
		ControlPlanes:  cluster.ControlPlanes,
		ExtraSANs:      kube.APIServer.ExtraSANs,
		PodCIDRs:       cluster.Networks.Pods,
		ServiceCIDRs:   cluster.Networks.Services,
		DNSDomain:      cluster.Networks.Domain,
		DNSUpstreams:   own,
		DNSSearch:      state.Search,
		PauseImage:     r.PauseImage,
		ReservedMemory: int64(c.Machine.Spec.Reserved.Memory),
		ReservedCPU:    int64(c.Machine.Spec.Reserved.CPU),

		MaxPods:           kube.MaxPods,
		FinishedPods:      kube.FinishedPods,
		PodEviction:       int(time.Duration(kube.PodEvictionTimeout) / time.Second),
		EventTTL:          kube.APIServer.EventTTL.String(),
		Taint:             c.Machine.Spec.Role == config.RoleControlPlane && !kube.AllowSchedulingOnControlPlane,
		PodSecurity:       string(kube.PodSecurity.Default),
		PodSecurityExempt: kube.PodSecurity.ExemptNamespaces,
		AuditFileMiB:      int(kube.Audit.MaxFileSize / mib),
		AuditFiles:        kube.Audit.MaxFiles,

		Encapsulation: string(cluster.Networks.Encapsulation),
		Pools:         pools(cluster.Networks.LoadBalancer),
		ExternalIPs:   ranges(cluster.Networks.ExternalIPs),
		Kubelet:       nodespec.Kubelet{ClosedToPods: kube.Kubelet.ClosedToPods, Namespaces: kube.Kubelet.OpenToNamespaces},

		VirtualAddresses: cluster.VirtualAddresses,

		External: nodespec.External{Proxy: cluster.HasExternal(config.PartProxy), DNS: cluster.HasExternal(config.PartDNS), Network: cluster.HasExternal(config.PartNetwork)},

		DNS: clusterDNS(cluster.DNS, own),

		LocalVolumes: nodespec.LocalVolumes{Disabled: !cluster.LocalVolumes.Enabled, Reserve: int64(cluster.LocalVolumes.Reserve)},

		PodCertificates: cluster.PodCertificates.Enabled,

		TokenWebhook: access(c.Cluster).TokenWebhook(),
	}
	for _, r := range cluster.Networks.Services {
		spec.DNSIPs = append(spec.DNSIPs, nth(r, 10))
	}
	return spec, nil
}

// resolvers returns the resolvers of the machine that pods and the cluster DNS can use, and the
// reason for each of the others. A resolver from DHCP can be any address; configured resolvers were
// checked.
func resolvers(n config.ClusterNetworks, all []netip.Addr) (usable []netip.Addr, unused []string) {
	for _, a := range all {
		if err := config.CheckNameServer(a, n); err != nil {
			unused = append(unused, fmt.Sprintf("resolver %s: pods do not use it: %v; configure another one (Network.spec.dns, Cluster.spec.dns)", a, err))
			continue
		}
		usable = append(usable, a)
	}
	return usable, unused
}

// clusterDNS returns the upstreams of the cluster DNS: the configured upstreams, else the resolvers
// of the machine.
func clusterDNS(c config.ClusterDNS, own []netip.Addr) nodespec.DNS {
	dns := nodespec.DNS{Upstreams: c.Upstreams.AddrPorts(), CacheTTL: int(time.Duration(c.CacheTTL) / time.Second)}
	if len(dns.Upstreams) == 0 {
		// a network may announce dozens, and CoreDNS does not start with more
		for _, a := range own[:min(len(own), config.MaxNameServers)] {
			dns.Upstreams = append(dns.Upstreams, netip.AddrPortFrom(a, config.PortDNS))
		}
	}
	for _, s := range c.StubDomains {
		dns.StubDomains = append(dns.StubDomains, nodespec.StubDomain{Domain: s.Domain, Servers: s.Servers.AddrPorts()})
	}
	return dns
}

// pools converts the address pools for Services to the form of the orchestrator.
func pools(c config.LoadBalancer) []nodespec.Pool {
	var all []nodespec.Pool
	for _, p := range c.Pools {
		all = append(all, nodespec.Pool{Name: p.Name, OnRequest: p.OnRequest, Ranges: ranges(p.Ranges)})
	}
	return all
}

func ranges(all []config.AddressRange) []nodespec.Range {
	var out []nodespec.Range
	for _, r := range all {
		out = append(out, nodespec.Range(r))
	}
	return out
}

// addons converts the configured add-ons to the form of the orchestrator. found contains the state
// of the artifacts.
func addons(all []config.Addon, found images.Artifacts) []nodespec.Addon {
	out := []nodespec.Addon{}
	for _, a := range all {
		addon := nodespec.Addon{
			Name: a.Metadata.Name, Namespace: a.Spec.DefaultNamespace(), Namespaces: a.Spec.Scope.Namespaces, Kubernetes: a.Spec.Requires.Kubernetes.Version(), Within: time.Duration(a.Spec.HealthyWithin),
			Rights: nodespec.AddonRights{NamespaceAdmin: a.Spec.Rights.NamespaceAdmin, ClusterAdmin: a.Spec.Rights.ClusterAdmin},
		}
		for _, m := range a.Spec.Manifests {
			addon.Manifests = append(addon.Manifests, m.Reveal())
		}
		if from := a.Spec.Artifact; from != (config.Artifact{}) {
			missing, looked := found[from.SHA256]
			if !looked {
				missing = from.String() + " is being searched"
			}
			addon.Artifact = nodespec.Artifact{Name: from.String(), SHA256: from.SHA256, Missing: missing}
		}
		for _, r := range a.Spec.Rights.Rules {
			rule := nodespec.PolicyRule{Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs, Verbs: r.Verbs}
			for _, g := range r.APIGroups {
				rule.APIGroups = append(rule.APIGroups, g.String())
			}
			addon.Rights.Rules = append(addon.Rights.Rules, rule)
		}
		out = append(out, addon)
	}
	return out
}

// nodeLabels returns the labels and taints of the Node in the form of the orchestrator.
func nodeLabels(n config.Node) nodespec.NodeLabels {
	out := nodespec.NodeLabels{Labels: n.Labels}
	for _, t := range n.Taints {
		out.Taints = append(out.Taints, nodespec.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return out
}

// nth is the n-th address of a range.
func nth(r netip.Prefix, n int) netip.Addr {
	a := r.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

// nodeAddresses returns the machine's addresses that other machines can reach, one per family, IPv4
// first.
func nodeAddresses(c *config.Config, state network.State) []netip.Addr {
	if c == nil || c.Cluster == nil {
		return state.NodeAddresses(nil)
	}
	// the other machines use the configured address
	return state.NodeAddresses(c.Cluster.Spec.ControlPlanes)
}

// ownAddresses returns all addresses of the machine.
func ownAddresses(state network.State) []netip.Addr {
	var own []netip.Addr
	for _, l := range state.Links {
		for _, a := range l.Addresses {
			own = append(own, a.Prefix.Addr())
		}
	}
	return own
}

// access returns the authentication and authorization of the API server.
func access(c *config.Cluster) credentials.Access {
	k := c.Spec.Kubernetes
	return credentials.Access{Authentication: k.Authentication, Authorization: k.Authorization}
}

// authorities returns the sources of this machine's credentials: the CAs of the Cluster document,
// or the certificates of a worker.
func (m *machine) authorities(c *config.Config) (credentials.Authorities, error) {
	marked, err := json.Marshal(nodeLabels(c.Machine.Spec.Node))
	if err != nil {
		return credentials.Authorities{}, fmt.Errorf("Machine.spec.node: cannot describe: %w", err)
	}
	refused, err := m.revokedSet(c)
	if err != nil {
		return credentials.Authorities{}, err
	}
	if isWorker(c) {
		member, _ := m.membership.Get()
		believed := nodeCAs(c)
		return credentials.Authorities{
			Kubernetes: credentials.Authority{CA: &pki.CA{Cert: believed[0]}, Accepted: believed[1:]}, NodeLabels: marked, RevokedSet: refused, Issued: member.certs.node,
		}, nil
	}
	a, err := authorities(c.Cluster)
	if err != nil {
		return a, err
	}
	a.NodeLabels, a.RevokedSet = marked, refused
	found, _ := m.images.Artifacts().Get()
	if a.Addons, err = json.Marshal(addons(c.Addons, found)); err != nil {
		return a, fmt.Errorf("add-ons: cannot describe: %w", err)
	}
	return a, nil
}

// revokedSet returns the revocations for API server and kubelet as JSON, with the operators' CAs
// that the management API trusts.
func (m *machine) revokedSet(c *config.Config) ([]byte, error) {
	callers, err := m.callers(c)
	if err != nil {
		return nil, err
	}
	out := trust.RevokedSet{TrustedRoots: []string{}}
	for _, cas := range [][]byte{callers.Operators, callers.Clients} {
		if len(cas) == 0 {
			continue
		}
		known, err := pki.ParseCerts(cas)
		if err != nil {
			return nil, fmt.Errorf("operators' authorities: %w", err)
		}
		for _, ca := range known {
			out.TrustedRoots = append(out.TrustedRoots, pki.Fingerprint(ca))
		}
	}
	m.ledger.Lock()
	defer m.ledger.Unlock()
	out.Revoked = withoutReassigned(c, m.ledger.currentLocked(), m.ledger.revokedLocked(), time.Now())
	return json.Marshal(out)
}

// authorities returns the CAs of a Cluster document.
func authorities(c *config.Cluster) (credentials.Authorities, error) {
	var a credentials.Authorities
	var err error
	own, accepted := c.Spec.PKI, c.Spec.PKI.Accepted
	if a.Kubernetes.CA, err = authority(own.Kubernetes); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.kubernetes: %w", err)
	}
	if a.Etcd.CA, err = authority(own.Etcd); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.etcd: %w", err)
	}
	if a.FrontProxy.CA, err = authority(own.FrontProxy); err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.frontProxy: %w", err)
	}
	a.Kubernetes.Accepted, a.Etcd.Accepted, a.FrontProxy.Accepted = x509s(accepted.Kubernetes), x509s(accepted.Etcd), x509s(accepted.FrontProxy)
	a.ServiceAccountKey = []byte(c.Spec.PKI.ServiceAccountKey.PEM())
	key := c.Spec.PKI.ServiceAccountKey.Signer()
	if key == nil {
		return a, errors.New("Cluster.spec.pki.serviceAccountKey: is missing")
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return a, fmt.Errorf("Cluster.spec.pki.serviceAccountKey: %w", err)
	}
	a.ServiceAccountPub = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	a.EncryptionKeys = c.Spec.EncryptionKeys()
	a.Access = access(c)
	return a, nil
}

// x509s converts certificates to the form of crypto/x509.
func x509s(certs []config.Certificate) []*x509.Certificate {
	var out []*x509.Certificate
	for _, c := range certs {
		out = append(out, c.X509())
	}
	return out
}

// machineCAs and nodeCAs are the machine CA and the Kubernetes CA: the issuing CA first, then the
// accepted CAs.
func machineCAs(c *config.Config) []*x509.Certificate {
	return append([]*x509.Certificate{c.Cluster.Spec.PKI.Machine.Cert.X509()}, x509s(c.Cluster.Spec.PKI.Accepted.Machine)...)
}

func nodeCAs(c *config.Config) []*x509.Certificate {
	return append([]*x509.Certificate{c.Cluster.Spec.PKI.Kubernetes.Cert.X509()}, x509s(c.Cluster.Spec.PKI.Accepted.Kubernetes)...)
}

// machinePool is machineCAs as a pool, to verify another machine.
func machinePool(c *config.Config) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, ca := range machineCAs(c) {
		pool.AddCert(ca)
	}
	return pool
}

// trusted returns a CA and the CAs that are accepted beside it, in PEM; empty without the CA.
func trusted(own config.Certificate, accepted []config.Certificate) []byte {
	if own.IsZero() {
		return nil
	}
	return pki.EncodeCerts(append(x509s(accepted), own.X509())...)
}

// wantedServices returns the services of a configuration, even if the machine has no address yet.
func (m *machine) wantedServices(c *config.Config) ([]supervise.Service, error) {
	services := []supervise.Service{apidService()}
	if c == nil || c.Cluster == nil {
		return services, nil
	}
	state, _ := m.networkState.Get()
	spec, err := nodeSpec(c, state, m.release)
	if err != nil {
		return append(services, kubernetes(c.Machine.Spec.Role == config.RoleControlPlane)...), nil
	}
	a, err := m.authorities(c)
	if err != nil {
		return nil, err
	}
	folders := map[string]string{serviceKubeAPI: paths.KubeAPI, serviceControllers: paths.KubeControllers, serviceNode: paths.KubeNode}
	for _, s := range kubernetes(spec.ControlPlane) {
		// supervise.Diff compares whole services, so a hash of the files that a service reads at
		// its start is part of it.
		if folder, ours := folders[s.Name]; ours {
			text, err := json.Marshal(specFor(spec, s.Name))
			if err != nil {
				return nil, fmt.Errorf("node: cannot describe: %w", err)
			}
			s.Env = append(s.Env, fmt.Sprintf("ORLOP_SPEC=%x", sha256.Sum256(append(text, a.ReadAtStart(folder)...))))
		}
		services = append(services, s)
	}
	return services, nil
}

// specFor returns the part of the node's description that a service reads: a change of the
// resolvers, for example by a new lease, does not restart etcd and the API server.
func specFor(spec nodespec.Spec, service string) nodespec.Spec {
	if service != serviceNode {
		spec.DNS, spec.DNSUpstreams, spec.DNSSearch = nodespec.DNS{}, nil, nil
	}
	return spec
}

// prepareKubernetes writes the files that the services of a node read at their start. It is
// idempotent.
func (m *machine) prepareKubernetes(spec nodespec.Spec) error {
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("node: cannot describe: %w", err)
	}
	for _, dir := range []string{filepath.Dir(paths.NodeSpec), filepath.Dir(paths.ContainerdConfig), paths.CNIConfig} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("node: cannot create directory: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.NodeSpec, text, 0o644); err != nil {
		return fmt.Errorf("node: cannot write its description: %w", err)
	}
	if spec.External.Network {
		if err := emptyPluginsOnce(paths.ContainerdConfig, paths.ExternalCNIPlugins); err != nil {
			return fmt.Errorf("pod network: cannot create the directory for its plugins: %w", err)
		}
	}
	if err := renameio.WriteFile(paths.ContainerdConfig, containerdConfig(spec.PauseImage, spec.External.Network), 0o644); err != nil {
		return fmt.Errorf("containerd: cannot write its configuration: %w", err)
	}
	return nil
}

// emptyPluginsOnce creates the directory into which an external pod network writes its plugins.
// containerd runs them as root, and the directory is on a disk: only plugins that a pod wrote in
// this boot may run. The configuration of containerd is in memory, so its absence shows that the
// machine has just booted.
func emptyPluginsOnce(configuration, plugins string) error {
	if _, err := os.Stat(configuration); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(plugins); err != nil {
		return err
	}
	return os.MkdirAll(plugins, 0o755)
}
