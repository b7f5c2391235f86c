package config

import (
	"fmt"
	"slices"
	"strings"
)

// maxOpenNamespaces is the maximum number of namespaces with pods that have access to the kubelets.
const maxOpenNamespaces = 64

// kubelet validates the settings as the kubelet does when it starts
// (pkg/kubelet/apis/config/validation and the packages of its managers). It also rejects thresholds
// at which the machine itself would run out of memory or space.
func (v clusterValidator) kubelet(path string, spec *ClusterSpec) {
	const field = ".openToNamespaces"
	k := &spec.Kubernetes.Kubelet
	if k.ClosedToPods && spec.HasExternal(PartNetwork) {
		v.on(path+".closedToPods", wrong{
			reason:   "applies only to the built-in network, which Cluster.spec.external replaces",
			expected: "a network policy of the replacement",
		})
	}
	switch n := len(k.OpenToNamespaces); {
	case n > 0 && !k.ClosedToPods:
		v.on(path+field, wrong{reason: "has no effect while the port is open to all pods", expected: "closedToPods: true"})
	case n > maxOpenNamespaces:
		v.on(path+field, wrong{reason: fmt.Sprintf("%d namespaces", n), expected: fmt.Sprintf("at most %d", maxOpenNamespaces)})
	}
	v.namespaces(path+field, k.OpenToNamespaces)
	v.unsafeSysctls(path+".allowedUnsafeSysctls", k.AllowedUnsafeSysctls)
	v.cpuManager(path+".cpuManager", spec)
	if k.MemoryManager.Policy == MemoryManagerStatic && k.Eviction.Hard.MemoryAvailable.Percent > 0 {
		v.on(path+".eviction.hard.memoryAvailable", wrong{reason: "the static policy of the memory manager reserves this memory, and a percentage is no amount", expected: "an amount, such as 100MiB"})
	}
	if t := k.TopologyManager; t.Policy == TopologyNone && t != defaultKubelet().TopologyManager {
		v.on(path+".topologyManager.policy", wrong{reason: "the other settings of the topology manager have no effect without a policy", expected: "best-effort, restricted or single-numa-node"})
	}
	v.imageGC(path, k)
	v.eviction(path+".eviction", &k.Eviction)
	if s := k.Shutdown; s.CriticalPods >= s.GracePeriod {
		v.on(path+".shutdown.criticalPods", wrong{reason: "leaves no time for the other pods", expected: fmt.Sprintf("less than gracePeriod, %s", s.GracePeriod)})
	}
}

// namespacedSysctls are kernel parameters that have a separate value for each pod, or beginnings of
// their names. The kubelet does not start if the list contains other parameters
// (k8s.io/component-helpers/node/util/sysctl).
var namespacedSysctls = []string{
	"fs.mqueue.", "kernel.domainname", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shm_rmid_forced",
	"kernel.shmall", "kernel.shmmax", "kernel.shmmni", "net.", "user.",
}

// unsafeSysctls validates names of kernel parameters, or beginnings of names followed by "*".
func (v clusterValidator) unsafeSysctls(path string, all []string) {
	seen := map[string]int{}
	for i, name := range all {
		at := fmt.Sprintf("%s[%d]", path, i)
		v.unique(at, "allowedUnsafeSysctls", name, i, seen)
		begin, pattern := strings.CutSuffix(name, "*")
		odd := func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_./", r) }
		own := slices.ContainsFunc(namespacedSysctls, func(known string) bool {
			family := strings.HasSuffix(known, ".")
			return begin == known && !family || family && strings.HasPrefix(begin, known) && (pattern || begin != known)
		}) || pattern && (begin == "kernel.shm" || begin == "kernel.msg")
		switch {
		case strings.ContainsFunc(begin, odd):
			v.on(at, wrong{reason: fmt.Sprintf("%s is not the name of a kernel parameter", quote(name)), expected: "a name such as net.core.somaxconn, or a beginning such as net.ipv4.tcp_*"})
		case !own:
			v.on(at, wrong{
				reason: fmt.Sprintf("%s is a parameter of the whole machine, which no pod can have of its own", quote(name)), expected: "a parameter below net., user. or fs.mqueue., or of System V IPC",
				hint: "Machine.spec.sysctls sets the parameters of the machine",
			})
		}
	}
}

// excludingOptions are the pairs of options of the CPU manager that exclude each other.
var excludingOptions = [][2]CPUManagerOption{
	{CPUFullCores, CPUDistributeAcrossCore}, {CPUDistributeAcrossNUMA, CPUDistributeAcrossCore},
	{CPUPreferUncoreCache, CPUDistributeAcrossCore}, {CPUPreferUncoreCache, CPUDistributeAcrossNUMA},
}

func (v clusterValidator) cpuManager(path string, spec *ClusterSpec) {
	m, gates := spec.Kubernetes.Kubelet.CPUManager, spec.Kubernetes.FeatureGates
	if m.Policy == CPUManagerNone && len(m.Options) > 0 {
		v.on(path+".options", wrong{reason: "the policy none has no options", expected: "policy: static beside it"})
	}
	seen := map[string]int{}
	for i, o := range m.Options {
		at := fmt.Sprintf("%s.options[%d]", path, i)
		v.unique(at, "options", string(o), i, seen)
		if (o == CPUAlignBySocket || o == CPUDistributeAcrossCore) && !gates["CPUManagerPolicyAlphaOptions"] {
			v.on(at, wrong{reason: fmt.Sprintf("%s is an alpha option", o), expected: "the feature gate CPUManagerPolicyAlphaOptions: true", hint: "set it in Cluster.spec.kubernetes.featureGates"})
		}
		if on, given := gates["CPUManagerPolicyBetaOptions"]; o == CPUDistributeAcrossNUMA && given && !on {
			v.on(at, wrong{reason: "the feature gate CPUManagerPolicyBetaOptions is off", hint: "omit the gate"})
		}
		if o == CPUAlignBySocket && spec.Kubernetes.Kubelet.TopologyManager.Policy == TopologySingleNUMA {
			v.on(at, wrong{reason: "a socket can have several NUMA nodes, and the policy of the topology manager is single-numa-node", expected: "another policy of the topology manager"})
		}
	}
	for _, pair := range excludingOptions {
		if m.Has(pair[0]) && m.Has(pair[1]) {
			v.on(path+".options", wrong{reason: fmt.Sprintf("%s and %s exclude each other", pair[0], pair[1]), expected: "one of them"})
		}
	}
}

// imageGC checks that the kubelet removes images before it evicts pods for lack of disk space.
func (v clusterValidator) imageGC(path string, k *Kubelet) {
	gc := k.ImageGC
	if gc.LowPercent >= gc.HighPercent {
		v.on(path+".imageGC.lowPercent", wrong{reason: "is not less than highPercent", expected: fmt.Sprintf("less than %d", gc.HighPercent)})
	}
	if t := k.Eviction.Hard.ImagefsAvailable; t.Percent > 0 && gc.HighPercent > 100-t.Percent {
		v.on(path+".imageGC.highPercent", wrong{
			reason:   fmt.Sprintf("pods would be evicted at %d %%, before images are removed (eviction.hard.imagefsAvailable: %s)", 100-t.Percent, t),
			expected: fmt.Sprintf("at most %d, or a lower threshold", 100-t.Percent),
		})
	}
	if gc.MaximumAge > 0 && gc.MaximumAge <= gc.MinimumAge {
		v.on(path+".imageGC.maximumAge", wrong{reason: "is not more than minimumAge", expected: fmt.Sprintf("more than %s", gc.MinimumAge)})
	}
}

// The minimum thresholds. With lower thresholds, the machine itself would run out of memory or
// space before pods are evicted.
const (
	minMemoryAvailable = 50 << 20
	minDiskAvailable   = 256 << 20
)

func (v clusterValidator) eviction(path string, e *Eviction) {
	thresholds := func(path string, all SoftEviction, hard HardEviction) {
		for _, f := range []struct {
			name       string
			soft, hard Threshold
			least      Bytes // 0 if the threshold is a number of inodes
		}{
			{"memoryAvailable", all.MemoryAvailable, hard.MemoryAvailable, minMemoryAvailable},
			{"nodefsAvailable", all.NodefsAvailable, hard.NodefsAvailable, minDiskAvailable},
			{"nodefsInodesFree", all.NodefsInodesFree, hard.NodefsInodesFree, 0},
			{"imagefsAvailable", all.ImagefsAvailable, hard.ImagefsAvailable, minDiskAvailable},
			{"imagefsInodesFree", all.ImagefsInodesFree, hard.ImagefsInodesFree, 0},
		} {
			at, t := path+"."+f.name, f.soft
			switch {
			case t == (Threshold{}):
			case t.Percent > 50:
				v.on(at, wrong{reason: fmt.Sprintf("pods would be evicted while half of it is free: %s", t), expected: "at most 50%"})
			case t.Percent == 0 && f.least == 0:
				v.on(at, wrong{reason: fmt.Sprintf("%s is an amount of bytes, but the field is a number of inodes", t), expected: "a percentage, such as 5%"})
			case t.Percent == 0 && t.Amount < f.least:
				v.on(at, wrong{reason: fmt.Sprintf("%s is too little for the system", t), expected: "at least " + f.least.String()})
			case (t.Percent > 0) == (f.hard.Percent > 0) && (t.Percent < f.hard.Percent || t.Amount < f.hard.Amount):
				v.on(at, wrong{reason: fmt.Sprintf("pods are evicted at %s already (hard.%s)", f.hard, f.name), expected: fmt.Sprintf("more than %s", f.hard)})
			}
		}
	}
	thresholds(path+".hard", SoftEviction(e.Hard), HardEviction{})
	thresholds(path+".soft", e.Soft, e.Hard)
	if e.Soft == (SoftEviction{}) && e.SoftGracePeriod != defaultKubelet().Eviction.SoftGracePeriod {
		v.on(path+".softGracePeriod", wrong{reason: "has no effect without a soft threshold", expected: "thresholds in soft"})
	}
}
