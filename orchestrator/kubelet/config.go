package kubelet

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/imagepolicy"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the component's name.
const Name = "kubelet"

// HealthPort is the port of the kubelet's health endpoint, on loopback without TLS.
const HealthPort = 10248

// Component describes the kubelet without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	at := func(name string) string { return filepath.Join(dirs.Node, name) }
	client := kubeconfig.NodeFile(spec, dirs, Name, nodespec.KubeletCert, nodespec.KubeletKey)
	resolvers := component.File{Path: at("resolv.conf"), Mode: 0o644, Content: resolvConf(spec)}
	settings := component.File{Path: at("kubelet.yaml"), Mode: 0o600, Content: configuration(spec, dirs, resolvers.Path)}
	return component.Component{
		Process: component.Node,
		Name:    Name,
		Args: []string{
			"--config=" + settings.Path,
			"--kubeconfig=" + client.Path,
			"--hostname-override=" + spec.Node.Name,
			"--node-ip=" + nodeIPs(spec.Node.IPs),
			"--root-dir=" + dirs.Kubelet.Data,
			"--cert-dir=" + filepath.Join(dirs.Kubelet.Data, "pki"),
		},
		Files: []component.File{client, resolvers, settings},
	}
}

// reservedPIDs is the number of tasks that pods together leave to the system. The kubelet limits
// the pods to kernel.threads-max minus this value. On a machine with 2 GiB of memory,
// kernel.threads-max is 16,000. The largest use of the system is a dozen tasks for the shim of each
// pod. Without the reservation, a few pods with podPidsLimit each would leave no process to the
// system.
const reservedPIDs = 4096

// nodeIPs returns the preferred address and the first address of the other family; the kubelet
// accepts no more.
func nodeIPs(own []netip.Addr) string {
	words := []string{own[0].String()}
	for _, ip := range own[1:] {
		if ip.Is6() != own[0].Is6() {
			return strings.Join(append(words, ip.String()), ",")
		}
	}
	return words[0]
}

// resolvConf returns the resolv.conf of pods that use the machine's name resolution. For all other
// pods, the kubelet appends the search domains of this file, as far as they fit, after the
// cluster's domains. The machine's own resolv.conf is unsuitable, because it may name the cluster's
// DNS server, which would then query itself.
func resolvConf(spec nodespec.Spec) string {
	var b strings.Builder
	for _, ip := range spec.DNS.NodeUpstreams {
		fmt.Fprintf(&b, "nameserver %s\n", ip)
	}
	if domains := searchDomains(spec); len(domains) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(domains, " "))
	}
	return b.String()
}

// The kubelet's limits of a pod's search list (MaxDNSSearchPaths and MaxDNSSearchListChars in
// pkg/apis/core/validation). If a list is longer, the kubelet cuts off the excess and emits an
// event for each pod.
const (
	maxSearchDomains = 32
	maxSearchChars   = 2048
	longestNamespace = 63
)

// searchDomains returns the machine's search domains that fit after the three domains of every pod
// of the cluster: NAMESPACE.svc.DOMAIN, svc.DOMAIN, DOMAIN.
func searchDomains(spec nodespec.Spec) []string {
	room := maxSearchChars - len(strings.Repeat("n", longestNamespace)+".svc. svc. ") - 3*len(spec.Network.DNSDomain)
	var out []string
	for _, d := range spec.DNS.NodeSearch {
		if room -= len(d) + 1; room < 0 || len(out) == maxSearchDomains-3 {
			break
		}
		if d != spec.Network.DNSDomain {
			out = append(out, d)
		}
	}
	return out
}

// tokenCache is how long the kubelet caches the API server's answer about a token (upstream: two
// minutes). It bounds how long the kubelet still accepts a token of a machine that was removed from
// the cluster.
const tokenCache = 5 * time.Second

// configuration returns the kubelet's configuration file (kubelet.config.k8s.io/v1beta1). Fields
// that it omits have upstream's default.
func configuration(spec nodespec.Spec, dirs dirs.Dirs, resolvConf string) string {
	var dns []string
	for _, ip := range spec.Network.DNSIPs {
		dns = append(dns, ip.String())
	}
	kube := spec.Kubernetes.Kubelet
	content := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		// Settings of pods.
		"seccompDefault": true,
		"clusterDNS":     dns,
		"clusterDomain":  spec.Network.DNSDomain,
		"resolvConf":     resolvConf,
		"maxPods":        spec.Kubernetes.MaxPods,
		"podPidsLimit":   kube.PodPidsLimit,

		// The runtime and the machine.
		"containerRuntimeEndpoint": "unix://" + imagepolicy.RuntimeSocket(spec, dirs),
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             true,
		"protectKernelDefaults":    true,
		"podLogsDir":               dirs.Kubelet.PodLogs,
		"containerLogMaxSize":      fmt.Sprint(int64(kube.ContainerLogs.MaxSize)),
		"containerLogMaxFiles":     kube.ContainerLogs.MaxFiles,

		// The time in which pods have to end at a shutdown; see logind.go.
		"shutdownGracePeriod":             kube.Shutdown.GracePeriod.String(),
		"shutdownGracePeriodCriticalPods": kube.Shutdown.CriticalPods.String(),

		"nodeStatusUpdateFrequency": "10s",
		"nodeStatusReportFrequency": "1m0s",
	}
	maps.Copy(content, serverSettings(dirs))
	maps.Copy(content, resourceSettings(spec))
	maps.Copy(content, managerSettings(spec))
	if len(kube.AllowedUnsafeSysctls) > 0 {
		content["allowedUnsafeSysctls"] = kube.AllowedUnsafeSysctls
	}
	if gates := spec.Kubernetes.FeatureGates; len(gates) > 0 {
		content["featureGates"] = gates
	}
	maps.Copy(content, swapSettings(spec))
	if spec.Node.Taint {
		content["registerWithTaints"] = []map[string]string{{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}}
	}
	return component.YAML(content)
}

// serverSettings are the settings of the kubelet's server. The API server decides about
// authentication and authorization; the kubelet itself verifies client certificates of the CA.
func serverSettings(dirs dirs.Dirs) map[string]any {
	at := func(name string) string { return filepath.Join(dirs.Node, name) }
	return map[string]any{
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
	}
}

// swapSettings are the settings of swap. Only containers of Burstable pods with a memory request
// can use swap; the behavior for all others, and without configured swap, is NoSwap. failSwapOn is
// false, so that the kubelet also starts while the machine still has swap that was disabled: to
// empty a swap device takes time, and can fail for lack of memory.
func swapSettings(spec nodespec.Spec) map[string]any {
	settings := map[string]any{"failSwapOn": false}
	if spec.Node.Swap > 0 {
		settings["memorySwap"] = map[string]string{"swapBehavior": "LimitedSwap"}
	}
	return settings
}

// resourceSettings are the reservations for the system, and the thresholds at which the kubelet
// evicts pods and removes images to preserve these reservations.
func resourceSettings(spec nodespec.Spec) map[string]any {
	kube := spec.Kubernetes.Kubelet
	settings := map[string]any{
		"systemReserved": map[string]string{
			"cpu":    fmt.Sprintf("%dm", spec.Node.ReservedCPU),
			"memory": fmt.Sprint(spec.Node.ReservedMemory),
			"pid":    fmt.Sprint(reservedPIDs),
		},
		"enforceNodeAllocatable":      []string{"pods"},
		"evictionHard":                quantities(kube.Eviction.Hard.Thresholds()),
		"imageGCHighThresholdPercent": kube.ImageGC.HighPercent,
		"imageGCLowThresholdPercent":  kube.ImageGC.LowPercent,
		"imageMinimumGCAge":           kube.ImageGC.MinimumAge.String(),
		"imageMaximumGCAge":           kube.ImageGC.MaximumAge.String(),
	}
	if soft := quantities(kube.Eviction.Soft.Thresholds()); len(soft) > 0 {
		grace := map[string]string{}
		for signal := range soft {
			grace[signal] = kube.Eviction.SoftGracePeriod.String()
		}
		settings["evictionSoft"], settings["evictionSoftGracePeriod"] = soft, grace
	}
	if spec.Node.ReservedCPUs != "" {
		settings["reservedSystemCPUs"] = spec.Node.ReservedCPUs
	}
	return settings
}

// quantities returns thresholds in the form of the kubelet.
func quantities(all map[string]config.Threshold) map[string]string {
	out := map[string]string{}
	for signal, t := range all {
		out[signal] = t.Quantity()
	}
	return out
}

// managerSettings are the settings of the managers of processors, memory and topology. The static
// policy of the memory manager requires the configuration to distribute all memory that pods cannot
// use over the NUMA nodes. This configuration takes all of it from node 0.
func managerSettings(spec nodespec.Spec) map[string]any {
	kube := spec.Kubernetes.Kubelet
	settings := map[string]any{
		"cpuManagerPolicy":      string(kube.CPUManager.Policy),
		"topologyManagerPolicy": string(kube.TopologyManager.Policy),
		"topologyManagerScope":  string(kube.TopologyManager.Scope),
	}
	if len(kube.CPUManager.Options) > 0 {
		options := map[string]string{}
		for _, o := range kube.CPUManager.Options {
			options[string(o)] = "true"
		}
		settings["cpuManagerPolicyOptions"] = options
	}
	if kube.TopologyManager.Policy != config.TopologyNone {
		settings["topologyManagerPolicyOptions"] = map[string]string{
			"prefer-closest-numa-nodes": fmt.Sprint(kube.TopologyManager.PreferClosest),
			"max-allowable-numa-nodes":  fmt.Sprint(kube.TopologyManager.MaximumNUMANodes),
		}
	}
	if kube.MemoryManager.Policy == config.MemoryManagerStatic {
		reserved := spec.Node.ReservedMemory + int64(kube.Eviction.Hard.MemoryAvailable.Amount)
		settings["memoryManagerPolicy"] = "Static"
		settings["reservedMemory"] = []map[string]any{{"numaNode": 0, "limits": map[string]string{"memory": fmt.Sprint(reserved)}}}
	}
	return settings
}
