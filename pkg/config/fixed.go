package config

// Reasons why the configuration has no field for a setting of Kubernetes that other systems have.
const (
	fixedHardening = "the system sets it for its hardening, and no configuration can change it"
	fixedAccess    = "only clients with a certificate or a token of the cluster have access, and no configuration can change it"
	fixedFlags     = "flags of components have no field, because the system depends on many of them"
)

// fixedSettings maps the paths of fields that do not exist to the reasons why. These fields have
// names from Kubernetes or other systems, which operators look for; the error "unknown field" would
// not explain their absence.
func fixedSettings() map[string]string {
	const kube = "Cluster.spec.kubernetes."
	all := map[string]string{
		kube + "apiServer.anonymousAuth":         fixedAccess,
		kube + "apiServer.authorizationMode":     "Node authorizer and RBAC always decide; Cluster.spec.kubernetes.authorization adds webhooks",
		kube + "apiServer.auditPolicy":           "Cluster.spec.kubernetes.audit.rules has the rules of the audit policy",
		kube + "apiServer.featureGates":          "Cluster.spec.kubernetes.featureGates is for all components",
		kube + "controllerManager.featureGates":  "Cluster.spec.kubernetes.featureGates is for all components",
		kube + "scheduler.featureGates":          "Cluster.spec.kubernetes.featureGates is for all components",
		kube + "kubelet.featureGates":            "Cluster.spec.kubernetes.featureGates is for all components",
		kube + "kubelet.reservedSystemCPUs":      "Machine.spec.reserved.cpus has the processors of the machine",
		kube + "kubelet.systemReserved":          "Machine.spec.reserved has the capacity for the system",
		kube + "kubelet.kubeReserved":            "Machine.spec.reserved has the capacity for the system",
		kube + "kubelet.maxPods":                 "Cluster.spec.kubernetes.maxPods has it",
		kube + "kubelet.staticPodPath":           "pods of files would bypass the admission of the API server",
		kube + "kubelet.staticPodURL":            "pods of a URL would bypass the admission of the API server",
		kube + "kubelet.failSwapOn":              "a Volume document with use: swap has swap, for containers of Burstable pods",
		kube + "kubelet.memorySwap":              "a Volume document with use: swap has swap, for containers of Burstable pods",
		kube + "kubelet.enableDebuggingHandlers": fixedHardening,
	}
	for _, name := range []string{"anonymous", "authentication", "authorization", "readOnlyPort"} {
		all[kube+"kubelet."+name] = fixedAccess
	}
	for _, name := range []string{
		"protectKernelDefaults", "seccompDefault", "tlsCipherSuites", "tlsMinVersion", "rotateCertificates", "serverTLSBootstrap",
		"enableSystemLogHandler", "enableSystemLogQuery", "enableProfilingHandler",
	} {
		all[kube+"kubelet."+name] = fixedHardening
	}
	for _, name := range []string{"tlsCipherSuites", "tlsMinVersion", "profiling"} {
		all[kube+"apiServer."+name] = fixedHardening
	}
	for _, component := range []string{"apiServer", "controllerManager", "kubelet", "scheduler"} {
		all[kube+component+".extraArgs"] = fixedFlags
	}
	return all
}
