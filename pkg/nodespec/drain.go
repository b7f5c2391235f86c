package nodespec

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// DrainRequest is the JSON input of `orchestrator drain`. At the timeout, a pod that its disruption
// budget still protects stays on the node, and ends with the machine. Refuse and Delete change
// this.
type DrainRequest struct {
	// Node is the node to drain, if it is not the node of this machine. For another node the
	// command uses the identity of the controllers, and for its own node the identity of the
	// kubelet.
	Node string `json:"node,omitempty"`
	// Operation is the operation that needs the drain. By is the caller of the operation. The
	// conditions of the Node show both.
	Operation string        `json:"operation"`
	By        string        `json:"by"`
	Timeout   time.Duration `json:"timeout"` // for all pods together
	// undo the drain if a disruption budget still protects a pod at the timeout, or the last round
	// was not complete
	Refuse bool `json:"refuse"`
	// delete a pod at once if its disruption budget forbids the eviction
	Delete bool `json:"delete"`
	// do not drain, but undo an earlier drain, because the operation that needed it did not happen
	Undo bool `json:"undo"`
}

// DrainProgress is the progress of a drain. `orchestrator drain` writes it to descriptor 3 after
// each change, as a line of JSON.
type DrainProgress struct {
	Evicted int `json:"evicted"` // pods whose eviction the API server has accepted
	Left    int `json:"left"`    // pods that are still on the node
	// Pods are the first MaxDrainPods of the pods that are left. Pods that block the drain come
	// before pods that are ending.
	Pods []DrainPod `json:"pods,omitempty"`
	// Problem is the error of the last round, for example an API server that does not respond. It
	// is empty if the round was complete.
	Problem string `json:"problem,omitempty"`
}

// DrainResult is the output of `orchestrator drain`.
type DrainResult struct {
	DrainProgress
	// the drain failed because of DrainRequest.Refuse, and the node is schedulable again
	Refused bool `json:"refused"`
}

// DrainPhase is the phase of a drain that machined performs. The topic "drain" and the machine
// object show it.
type DrainPhase string

// The phases. If the operation does not happen after PhaseDrained or PhaseIncomplete, machined
// undoes the drain.
const (
	PhaseRunning    DrainPhase = "running"
	PhaseDrained    DrainPhase = "drained"    // no pod is left
	PhaseIncomplete DrainPhase = "incomplete" // pods are left, the operation is permitted
	PhaseRefused    DrainPhase = "refused"    // pods are left, the operation is forbidden; undone
	PhaseGivenUp    DrainPhase = "given up"   // a caller has ended the drain; undone
	PhaseUndone     DrainPhase = "undone"     // the operation did not happen; undone
)

// MaxDrainPods is the maximum number of pods in DrainProgress.Pods.
const MaxDrainPods = 32

// DrainPodState is the state of a pod that is left on the node.
type DrainPodState string

// The states of a pod that is left on the node.
const (
	DrainEnding  DrainPodState = "ending"  // evicted, and in its grace period
	DrainBlocked DrainPodState = "blocked" // its disruption budget forbids the eviction at present
	DrainFailed  DrainPodState = "failed"  // its eviction fails for another reason
)

// DrainPod is a pod that is left on the node.
type DrainPod struct {
	Pod   string        `json:"pod"` // "namespace/name"
	State DrainPodState `json:"state"`
	// Budget is the name of the PodDisruptionBudget that blocks the pod, in the namespace of the
	// pod. It is empty if the API server names none.
	Budget  string `json:"budget,omitempty"`
	Message string `json:"message,omitempty"` // reason that the API server gives
}

// String describes the pod for an operator, for example "pod default/web: must stay: …".
func (p DrainPod) String() string {
	switch p.State {
	case DrainBlocked:
		return fmt.Sprintf("pod %s: must stay: %s", p.Pod, p.Message)
	case DrainFailed:
		return fmt.Sprintf("pod %s: cannot evict: %s", p.Pod, p.Message)
	}
	return fmt.Sprintf("pod %s: still ending", p.Pod)
}

// Blocking returns the listed pods that are not ending.
func (p DrainProgress) Blocking() []DrainPod {
	return slices.DeleteFunc(slices.Clone(p.Pods), func(p DrainPod) bool { return p.State == DrainEnding })
}

// Remaining describes the pods that are left and the problem, separated by semicolons. It is empty
// if the drain is complete.
func (p DrainProgress) Remaining() string {
	var all []string
	for _, pod := range p.Pods {
		all = append(all, pod.String())
	}
	if more := p.Left - len(p.Pods); more > 0 {
		all = append(all, fmt.Sprintf("%d more pods", more))
	}
	if p.Problem != "" {
		all = append(all, p.Problem)
	}
	return strings.Join(all, "; ")
}
