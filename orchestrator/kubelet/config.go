package kubelet

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the component's name.
const Name = "kubelet"

// HealthPort is where the kubelet tells its health, on loopback, without TLS.
const HealthPort = 10248

// Component describes the kubelet without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	at := func(name string) string { return filepath.Join(dirs.Node, name) }
	client := kubeconfig.NodeFile(spec, dirs, Name, nodespec.KubeletCert, nodespec.KubeletKey)
	resolvers := component.File{Path: at("resolv.conf"), Mode: 0o644, Content: resolvConf(spec)}
	config := component.File{Path: at("kubelet.yaml"), Mode: 0o600, Content: configuration(spec, dirs, resolvers.Path)}
	return component.Component{
		Process: component.Node,
		Name:    Name,
		Args: []string{
			"--config=" + config.Path,
			"--kubeconfig=" + client.Path,
			"--hostname-override=" + spec.NodeName,
			"--node-ip=" + nodeIPs(spec.NodeIPs),
			"--root-dir=" + dirs.KubeletData,
			"--cert-dir=" + filepath.Join(dirs.KubeletData, "pki"),
		},
		Files: []component.File{client, resolvers, config},
	}
}

// reservedPIDs are the tasks of the machine that pods together leave to the system: the kubelet
// bounds them by what is left of kernel.threads-max, which a machine with 2 GiB of memory has
// 16,000 of. The most that the system uses is a dozen for the shim of each pod. Without it a few
// pods with podPidsLimit each would leave no process to anybody.
const reservedPIDs = 4096

// nodeIPs is the preferred address, and with it the first one of the other family: the kubelet
// takes no more.
func nodeIPs(own []netip.Addr) string {
	words := []string{own[0].String()}
	for _, ip := range own[1:] {
		if ip.Is6() != own[0].Is6() {
			return strings.Join(append(words, ip.String()), ",")
		}
	}
	return words[0]
}

// resolvConf is what pods that want the machine's own name resolution get; of its search domains
// the kubelet puts those that fit behind the cluster's, for all other pods. The machine's
// resolv.conf cannot serve: it may name the cluster's DNS, which would ask itself.
func resolvConf(spec nodespec.Spec) string {
	var b strings.Builder
	for _, ip := range spec.DNSUpstreams {
		fmt.Fprintf(&b, "nameserver %s\n", ip)
	}
	if domains := searchDomains(spec); len(domains) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(domains, " "))
	}
	return b.String()
}

// The kubelet's bounds of a pod's search list (MaxDNSSearchPaths and MaxDNSSearchListChars in
// pkg/apis/core/validation). It cuts off what is beyond them, and makes an event of each pod
// then.
const (
	maxSearchDomains = 32
	maxSearchChars   = 2048
	longestNamespace = 63
)

// searchDomains are the machine's search domains that fit behind the three of every pod of the
// cluster: NAMESPACE.svc.DOMAIN, svc.DOMAIN, DOMAIN.
func searchDomains(spec nodespec.Spec) []string {
	room := maxSearchChars - len(strings.Repeat("n", longestNamespace)+".svc. svc. ") - 3*len(spec.DNSDomain)
	var out []string
	for _, d := range spec.DNSSearch {
		if room -= len(d) + 1; room < 0 || len(out) == maxSearchDomains-3 {
			break
		}
		if d != spec.DNSDomain {
			out = append(out, d)
		}
	}
	return out
}

// tokenCache is how long the kubelet remembers that the API server knows a token (upstream: two
// minutes): one of a machine that was removed counts so long at most.
const tokenCache = 5 * time.Second

// configuration is the kubelet's file (kubelet.config.k8s.io/v1beta1). What is not named keeps
// upstream's default.
func configuration(spec nodespec.Spec, dirs dirs.Dirs, resolvConf string) string {
	at := func(name string) string { return filepath.Join(dirs.Node, name) }
	var dns []string
	for _, ip := range spec.DNSIPs {
		dns = append(dns, ip.String())
	}
	content := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		// Who may ask, and what. Both are answered by the API server, except for who has a
		// certificate of the CA.
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true, "cacheTTL": tokenCache.String()},
			"x509":      map[string]any{"clientCAFile": at(nodespec.CA)},
		},
		"authorization":             map[string]any{"mode": "Webhook"},
		"port":                      paths.PortKubelet,
		"readOnlyPort":              0,
		"healthzBindAddress":        "127.0.0.1",
		"healthzPort":               HealthPort,
		"tlsCertFile":               at(nodespec.KubeletServing),
		"tlsPrivateKeyFile":         at(nodespec.KubeletServingKey),
		"tlsMinVersion":             "VersionTLS12",
		"tlsCipherSuites":           component.StrongSuites(),
		"rotateCertificates":        false,
		"serverTLSBootstrap":        false,
		"enableProfilingHandler":    false,
		"enableDebugFlagsHandler":   false,
		"enableSystemLogHandler":    false,
		"enableContentionProfiling": false,

		// What pods get.
		"seccompDefault": true,
		"clusterDNS":     dns,
		"clusterDomain":  spec.DNSDomain,
		"resolvConf":     resolvConf,
		"maxPods":        spec.MaxPods,
		"podPidsLimit":   4096, // one pod's fork bomb leaves the others their processes

		// The runtime and the machine.
		"containerRuntimeEndpoint": "unix://" + dirs.ContainerdSocket,
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             true,
		"protectKernelDefaults":    true,
		"podLogsDir":               dirs.PodLogs,
		"containerLogMaxSize":      "10Mi",
		"containerLogMaxFiles":     3,

		// What is kept for the system, and when pods are put out so that it keeps it.
		"systemReserved": map[string]string{
			"cpu":    fmt.Sprintf("%dm", spec.ReservedCPU),
			"memory": fmt.Sprint(spec.ReservedMemory),
			"pid":    fmt.Sprint(reservedPIDs),
		},
		"enforceNodeAllocatable": []string{"pods"},
		"evictionHard": map[string]string{
			"memory.available":   "100Mi",
			"nodefs.available":   "10%",
			"nodefs.inodesFree":  "5%",
			"imagefs.available":  "15%",
			"imagefs.inodesFree": "5%",
		},
		"imageGCHighThresholdPercent": 80,
		"imageGCLowThresholdPercent":  70,

		// What pods have to end when the machine goes down; see logind.go.
		"shutdownGracePeriod":             shutdownGrace.String(),
		"shutdownGracePeriodCriticalPods": criticalGrace.String(),

		"nodeStatusUpdateFrequency": "10s",
		"nodeStatusReportFrequency": "1m0s",
	}
	if spec.PodCertificates {
		gates := map[string]bool{}
		for _, feature := range component.PodCertificateFeatures() {
			gates[feature] = true
		}
		content["featureGates"] = gates
	}
	if spec.Taint {
		content["registerWithTaints"] = []map[string]string{{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}}
	}
	text, err := yaml.Marshal(content)
	if err != nil {
		// cannot happen
		panic(fmt.Sprintf("kubelet: a map of plain values has no YAML form: %v", err))
	}
	return string(text)
}
