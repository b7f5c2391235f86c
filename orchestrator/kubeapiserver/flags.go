package kubeapiserver

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the component's name.
const Name = "kube-apiserver"

// Component describes kube-apiserver without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return component.Component{
		Process: component.API,
		Name:    Name,
		Args:    flags(spec, dirs),
		Files:   files(spec, dirs),
	}
}

// Issuer returns the issuer of service account tokens. It is the name of a Service and contains no
// address, so tokens stay valid when the address of the endpoint changes.
func Issuer(spec nodespec.Spec) string {
	return "https://kubernetes.default.svc." + spec.Network.DNSDomain
}

func flags(spec nodespec.Spec, dirs dirs.Dirs) []string {
	at := func(name string) string { return filepath.Join(dirs.API, name) }
	args := slices.Concat(dataFlags(spec, dirs, at), accessFlags(spec, at), admissionFlags(spec.Kubernetes), auditFlags(spec, dirs, at), []string{
		// During its shutdown the server asks clients to retry elsewhere, instead of waiting a
		// minute for open watches.
		"--shutdown-send-retry-after=true",
		"--profiling=false",
		"--contention-profiling=false",
	})
	args = slices.Concat(args, requestFlags(spec.Kubernetes.APIServer), component.EmulationFlags(spec), component.GateFlags(spec), sealedFlags(spec))
	if spec.Network.Forwarder {
		args = append(args, "--egress-selector-config-file="+at(egressFile))
	}
	if spec.Kubernetes.APIServer.KMS != nil {
		// The server becomes ready when it has read its objects, and at the latest after this time,
		// because it cannot read Secrets while the key manager is unavailable.
		args = append(args, "--storage-initialization-timeout=10s")
	}
	if spec.PodCertificates {
		args = append(args, podCertificateFlags(spec)...)
	}
	if w := spec.TokenWebhook; w != nil {
		args = append(args,
			"--authentication-token-webhook-config-file="+at(w.Kubeconfig),
			"--authentication-token-webhook-version=v1",
			"--authentication-token-webhook-cache-ttl="+w.CacheTTL,
		)
	}
	return args
}

// requestFlags are the flags for the served API versions, and for the number of concurrent
// requests.
func requestFlags(a config.APIServer) []string {
	args := []string{
		fmt.Sprintf("--enable-priority-and-fairness=%t", a.Requests.PriorityAndFairness),
		fmt.Sprintf("--max-requests-inflight=%d", a.Requests.MaxInFlight),
		fmt.Sprintf("--max-mutating-requests-inflight=%d", a.Requests.MaxMutatingInFlight),
	}
	for _, version := range slices.Sorted(maps.Keys(a.RuntimeConfig)) {
		args = append(args, fmt.Sprintf("--runtime-config=%s=%t", version, a.RuntimeConfig[version]))
	}
	return args
}

// admissionFlags enable and disable admission plugins. The order of the names in a flag has no
// effect.
func admissionFlags(k config.Kubernetes) []string {
	a := k.APIServer.Admission
	on := []string{"NodeRestriction", NodeAgentAccess, NodeAnnotations, ReservedNamespaces, MachineAccess, MachinePorts}
	if k.SealedPolicies.System {
		on = append(on, SystemSubjects)
	}
	if len(a.EventRateLimits) > 0 {
		on = append(on, eventratelimit.PluginName)
	}
	if !a.PodNodeSelector.IsZero() {
		on = append(on, podnodeselector.PluginName)
	}
	join := func(flag string, names []string, plugins []config.AdmissionPlugin) string {
		for _, p := range plugins {
			names = append(names, string(p))
		}
		return flag + strings.Join(names, ",")
	}
	args := []string{join(enablePlugins, on, a.Enabled)}
	if len(a.Disabled) > 0 {
		args = append(args, join(disablePlugins, nil, a.Disabled))
	}
	return args
}

// podCertificateFlags enable the API of certificates of pods: v1beta1, with which kubelets of
// Kubernetes 1.36 request certificates, and v1 for the kubelet and signer of this version. Both are
// necessary, because the control plane is upgraded before the kubelets. Before 1.37 the features
// are off by default and v1 does not exist, so a server that emulates an earlier version needs
// flags for both.
func podCertificateFlags(spec nodespec.Spec) []string {
	const v1beta1 = "--runtime-config=certificates.k8s.io/v1beta1=true"
	if !spec.Emulated.Known() || !spec.Emulated.OlderThan(emulation.Minor{Major: 1, Minor: 37}) {
		return []string{v1beta1}
	}
	return []string{
		v1beta1 + ",certificates.k8s.io/v1=true",
		"--runtime-config-emulation-forward-compatible=true",
		component.GateFlag(config.PodCertificateGates()),
	}
}

// dataFlags are the flags for the server's addresses and for its data.
func dataFlags(spec nodespec.Spec, dirs dirs.Dirs, at func(name string) string) []string {
	return []string{
		"--advertise-address=" + spec.Node.IPs[0].String(),
		"--bind-address=" + bindAddress(spec.Node.IPs),
		fmt.Sprintf("--secure-port=%d", paths.PortKubernetes),
		"--service-cluster-ip-range=" + component.JoinPrefixes(spec.Network.ServiceCIDRs),
		"--allow-privileged=true",

		"--etcd-servers=unix://" + dirs.EtcdSocket(),
		"--etcd-prefix=/registry",
		"--event-ttl=" + spec.Kubernetes.APIServer.EventTTL.String(),
		"--encryption-provider-config=" + at(nodespec.Encryption),
		"--encryption-provider-config-automatic-reload=true",

		"--tls-cert-file=" + at(nodespec.APIServerCert),
		"--tls-private-key-file=" + at(nodespec.APIServerKey),
		"--tls-min-version=VersionTLS12",
		"--tls-cipher-suites=" + strings.Join(component.StrongSuites(), ","),
	}
}

// accessFlags are the flags for authentication, authorization and admission, and for the server's
// own identities.
func accessFlags(spec nodespec.Spec, at func(name string) string) []string {
	return []string{
		"--client-ca-file=" + at(nodespec.CA),
		"--authentication-config=" + at(nodespec.Authentication),
		"--authorization-config=" + at(nodespec.Authorization),
		"--admission-control-config-file=" + at(admissionFile),
		fmt.Sprintf("--default-not-ready-toleration-seconds=%d", spec.Kubernetes.PodEvictionTimeout.Seconds()),
		fmt.Sprintf("--default-unreachable-toleration-seconds=%d", spec.Kubernetes.PodEvictionTimeout.Seconds()),

		"--kubelet-certificate-authority=" + at(nodespec.CA),
		"--kubelet-client-certificate=" + at(nodespec.KubeletClientCert),
		"--kubelet-client-key=" + at(nodespec.KubeletClientKey),
		"--kubelet-preferred-address-types=InternalIP,Hostname",

		"--service-account-issuer=" + Issuer(spec),
		"--service-account-signing-key-file=" + at(nodespec.ServiceAccountKey),
		"--service-account-key-file=" + at(nodespec.ServiceAccountPub),
		// A pod's token expires as requested, after an hour by default. Upstream extends it to a
		// year for clients from before 2021 that never reload it.
		"--service-account-extend-token-expiration=false",

		"--requestheader-client-ca-file=" + at(nodespec.FrontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + at(nodespec.FrontProxyCert),
		"--proxy-client-key-file=" + at(nodespec.FrontProxyKey),
	}
}

func auditFlags(spec nodespec.Spec, dirs dirs.Dirs, at func(name string) string) []string {
	return []string{
		"--audit-policy-file=" + at(auditFile),
		"--audit-log-path=" + filepath.Join(dirs.AuditLog, "audit.log"),
		// In this mode, the server answers a request only after it has written its line, so a crash
		// loses no line.
		"--audit-log-mode=blocking",
		fmt.Sprintf("--audit-log-maxsize=%d", spec.Kubernetes.Audit.MaxFileSize>>20),
		fmt.Sprintf("--audit-log-maxbackup=%d", spec.Kubernetes.Audit.MaxFiles),
		// Compression reduces old files to a tenth. The number of files is the limit; the age is
		// set because the CIS benchmark requires an age.
		"--audit-log-compress=true",
		"--audit-log-maxage=3650",
	}
}

// bindAddress returns the wildcard address: of both families if the machine has an IPv6 address.
func bindAddress(own []netip.Addr) string {
	for _, a := range own {
		if a.Is6() {
			return "::"
		}
	}
	return "0.0.0.0"
}
