package drain

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stage is a stage of the maintenance of a node.
type stage string

// The stages in their order. A drain that fails or is given up continues with the stage undone.
const (
	draining   stage = "draining"    // pods are evicted
	drained    stage = "drained"     // no pod is left; the machine is away soon
	incomplete stage = "incomplete"  // pods are left at the deadline; the machine is away soon
	leaving    stage = "leaving"     // the machine shuts down
	undone     stage = "undone"      // the operation does not happen
	booted     stage = "booted"      // the machine has booted
	ready      stage = "ready again" // the kubelet reports that the node is ready
)

// managed are the conditions of a Node that this package sets (the node lifecycle conditions of
// Kubernetes, KEP 5683). In each stage a condition is true, absent, false, or as it was before.
//
//	stage        Maintenance-  Drain-      Drained    Maintenance-  GracefulNode-
//	             Planned       InProgress             InProgress    ShutdownInProgress
//	draining     true          true        absent     as before     as before
//	drained      true          absent      true       as before     as before
//	incomplete   true          absent      false      as before     as before
//	leaving      absent        absent      as before  true          true
//	undone       absent        absent      absent     as before     as before
//	booted       absent        absent      absent     as before     absent
//	ready again  as before     as before   as before  absent        absent
//
// A condition that is true with a reason of another program stays as it is: the site may plan its
// own maintenance.
var managed = []corev1.NodeConditionType{
	corev1.NodeMaintenancePlanned, corev1.NodeDrainInProgress, corev1.NodeDrained, corev1.NodeMaintenanceInProgress, corev1.NodeGracefulNodeShutdownInProgress,
}

// values has the row of each stage in the table of managed: "t" is true, "f" false, "-" absent, and
// "=" as before.
var values = map[stage]string{
	draining:   "tt-==",
	drained:    "t-t==",
	incomplete: "t-f==",
	leaving:    "--=tt",
	undone:     "---==",
	booted:     "---=-",
	ready:      "===--",
}

// reasonPrefix begins the reasons of the conditions that this package has set.
const reasonPrefix = "Orlop"

// reasonOf returns the reason of conditions for an operation: "reboot" → "OrlopReboot".
func reasonOf(operation string) string {
	if operation == "" {
		operation = "maintenance"
	}
	return reasonPrefix + strings.ToUpper(operation[:1]) + operation[1:]
}

// cause explains the conditions of a stage.
type cause struct {
	reason  string // from reasonOf
	message string
}

// conditionChanges returns the elements of a strategic merge patch that give a Node the conditions
// of a stage; none if the Node has them already. A condition with the right value and another
// message gets the new message.
func conditionChanges(n *corev1.Node, s stage, why cause, now time.Time) []any {
	var changes []any
	at := metav1.NewTime(now.Truncate(time.Second))
	for i, kind := range managed {
		have := condition(n, kind)
		switch want := values[s][i]; {
		case want == '=', want == '-' && have == nil:
		case have != nil && have.Status == corev1.ConditionTrue && !strings.HasPrefix(have.Reason, reasonPrefix):
		case want == '-':
			changes = append(changes, map[string]any{"type": kind, "$patch": "delete"})
		default:
			c := corev1.NodeCondition{
				Type: kind, Status: corev1.ConditionTrue, Reason: why.reason, Message: why.message,
				LastHeartbeatTime: at, LastTransitionTime: at,
			}
			if want == 'f' {
				c.Status = corev1.ConditionFalse
			}
			if have != nil && have.Status == c.Status {
				c.LastTransitionTime = have.LastTransitionTime
				if have.Reason == c.Reason && have.Message == c.Message {
					continue
				}
			}
			changes = append(changes, c)
		}
	}
	return changes
}

// condition returns a condition of a Node; nil if it has none.
func condition(n *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == kind {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}
