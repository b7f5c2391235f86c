package power

import (
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/orlop-os/orlop/orchestrator/offlineapi"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
)

// taintPrefix begins the value of the taint of a fence. The boot ID of the Node before the fence
// follows. An operator who releases a machine by hand uses another value.
const taintPrefix = "fenced-"

// away is how long a machine may be away for an operation after which it boots by itself, for
// example an upgrade.
const away = 30 * time.Minute

// comingBack are the reasons of condition MaintenanceInProgress for operations after which the
// machine boots by itself (orchestrator/drain).
var comingBack = []string{"OrlopReboot", "OrlopUpgrade", "OrlopRollback"}

// renewed is the largest age of the Lease of a kubelet with which its machine counts as running,
// for the quorum of etcd. The kubelet renews the Lease every 10 seconds.
const renewed = 20 * time.Second

// Renewed reports whether a kubelet has renewed its Lease a moment ago; nil means that the Lease
// does not exist, or was not read.
func Renewed(lease *coordinationv1.Lease, now time.Time) bool {
	return lease != nil && lease.Spec.RenewTime != nil && now.Sub(lease.Spec.RenewTime.Time).Abs() <= renewed
}

// NodeOf returns the facts about a Node; n is nil if the Node does not exist. lease is the Lease of
// its kubelet; nil means that the Lease was not read. A Lease without a time was never renewed. If
// the boot ID cannot be the value of a taint, NodeOf ignores it, because a stolen worker could
// otherwise make the objects of its fence invalid.
func NodeOf(n *corev1.Node, lease *coordinationv1.Lease, now time.Time) fence.Node {
	if n == nil {
		return fence.Node{}
	}
	out := fence.Node{Exists: true, BootID: n.Status.NodeInfo.BootID}
	if out.BootID != "" && len(validation.IsValidLabelValue(taintPrefix+out.BootID)) > 0 {
		out.BootID = ""
	}
	ready := condition(n, corev1.NodeReady)
	out.Ready = ready.Status == corev1.ConditionTrue
	out.Reports = out.Ready || ready.Status == corev1.ConditionFalse
	out.Silent = ready.Status == corev1.ConditionUnknown && lease != nil && (lease.Spec.RenewTime == nil || now.Sub(lease.Spec.RenewTime.Time) >= fence.Silence)
	if t := taintOf(n); t != nil {
		out.Taint = strings.TrimPrefix(t.Value, taintPrefix)
	}
	return out
}

// condition returns a condition of a Node; the zero value if the Node does not have it.
func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// Away returns the reason why a machine is away because of an operation. Its power switch must then
// not be operated. Otherwise it returns "". After 30 minutes, an upgrade or a reboot counts as
// failed, and the machine no longer counts as away.
func Away(n *corev1.Node, now time.Time) string {
	if n == nil {
		return ""
	}
	c := condition(n, corev1.NodeMaintenanceInProgress)
	if c.Status != corev1.ConditionTrue || slices.Contains(comingBack, c.Reason) && now.Sub(c.LastTransitionTime.Time) > away {
		return ""
	}
	return "the machine was shut down in order (condition MaintenanceInProgress of its Node, " + c.Reason + "): start it, or release its pods yourself (task 87)"
}

// taintOf returns the taint of a fence; nil if the Node does not have it.
func taintOf(n *corev1.Node) *corev1.Taint {
	for i, t := range n.Spec.Taints {
		if isOurs(t) {
			return &n.Spec.Taints[i]
		}
	}
	return nil
}

func isOurs(t corev1.Taint) bool {
	return t.Key == corev1.TaintNodeOutOfService && t.Effect == corev1.TaintEffectNoExecute && strings.HasPrefix(t.Value, taintPrefix)
}

// ByHand reports whether an operator has set the taint with which pods are released.
func ByHand(n *corev1.Node) bool {
	return n != nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && t.Effect == corev1.TaintEffectNoExecute && !isOurs(t)
	})
}

// Taints returns the taints of a Node with the taint of a fence for a boot ID. If the boot ID is
// empty, the result has no such taint. A taint that an operator has set for the same purpose stays.
func Taints(n *corev1.Node, bootID string) []corev1.Taint {
	all := slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs)
	byHand := slices.ContainsFunc(all, func(t corev1.Taint) bool {
		return t.Key == corev1.TaintNodeOutOfService && t.Effect == corev1.TaintEffectNoExecute
	})
	if bootID == "" || byHand {
		return all
	}
	return append(all, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: taintPrefix + bootID, Effect: corev1.TaintEffectNoExecute})
}

// PodsOf returns the facts about the pods of a Node. It ignores pods that a fence does not release:
// pods that tolerate the taint, have ended or are static. A pod of a DaemonSet cannot start on
// another Node, so it does not prevent that the machine is switched on again.
func PodsOf(all []corev1.Pod) fence.Pods {
	out := fence.Pods{Read: true}
	for _, p := range all {
		_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if static || ended || slices.ContainsFunc(p.Spec.Tolerations, tolerates) {
			continue
		}
		owner := metav1.GetControllerOf(&p)
		if out.Left++; p.Annotations[offlineapi.Annotation] == "true" && (owner == nil || owner.Kind != "DaemonSet") {
			out.Offline = p.Namespace + "/" + p.Name
		}
	}
	return out
}

// tolerates reports whether a pod with this toleration may stay on a Node with the taint of a
// fence.
func tolerates(t corev1.Toleration) bool {
	key := t.Key == corev1.TaintNodeOutOfService || t.Key == ""
	effect := t.Effect == corev1.TaintEffectNoExecute || t.Effect == ""
	return key && effect && t.Operator == corev1.TolerationOpExists && t.TolerationSeconds == nil
}
