package nodespec

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// DrainRequest is the JSON input of `orchestrator drain`. If a disruption budget still protects a
// pod at the timeout, the pod stays on the node and ends with the shutdown of the machine, unless
// Refuse or Delete is set.
type DrainRequest struct {
	// Node is the node to drain; empty for the node of this machine. The command uses the identity
	// of the kubelet for the node of this machine, and that of the controllers for another node.
	Node string `json:"node,omitempty"`
	// Operation is the operation that needs the drain. By is the caller of the operation. The
	// conditions of the Node show both.
	Operation string        `json:"operation"`
	By        string        `json:"by"`
	Timeout   time.Duration `json:"timeout"` // for all pods together
	// Refuse means that the drain fails and is undone if a disruption budget still protects a pod
	// at the timeout, or if the last round of evictions was not complete.
	Refuse bool `json:"refuse"`
	// Delete means that a pod is deleted at once if its disruption budget forbids the eviction.
	Delete bool `json:"delete"`
	// Undo means that the command does not drain, but undoes an earlier drain, because the
	// operation that needed the drain did not happen.
	Undo bool `json:"undo"`
}

// DrainProgress is the progress of a drain. `orchestrator drain` writes it to descriptor 3 after
// each change, as a line of JSON.
type DrainProgress struct {
	Evicted int `json:"evicted"` // pods whose eviction the API server has accepted
	Left    int `json:"left"`    // pods that are still on the node
	// Pods are at most MaxDrainPods of the pods that are left. Pods that block the drain come
	// before pods that are ending.
	Pods []DrainPod `json:"pods,omitempty"`
	// Problem is the error of the last round of evictions, for example that the API server does not
	// respond. It is empty if the round was complete.
	Problem string `json:"problem,omitempty"`
}

// DrainResult is the output of `orchestrator drain`.
type DrainResult struct {
	DrainProgress
	// Refused means that the drain failed because of DrainRequest.Refuse and was undone.
	Refused bool `json:"refused"`
}

// DrainPhase is the phase of a drain that machined performs. The topic "drain" and the machine
// object show it.
type DrainPhase string

// The phases. The operation proceeds only after PhaseDrained and PhaseIncomplete. If the operation
// does not happen, machined undoes the drain (PhaseUndone).
const (
	PhaseRunning    DrainPhase = "running"
	PhaseDrained    DrainPhase = "drained"    // no pod is left
	PhaseIncomplete DrainPhase = "incomplete" // pods are left, and the operation is permitted
	PhaseRefused    DrainPhase = "refused"    // pods were left, and the drain is undone (Refuse)
	PhaseGivenUp    DrainPhase = "given up"   // a caller has ended the drain, which is undone
	PhaseUndone     DrainPhase = "undone"     // the operation did not happen, and the drain is undone
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
	// Budget is the name of the PodDisruptionBudget that blocks the eviction, in the namespace of
	// the pod. It is empty if the answer of the API server names no budget.
	Budget  string `json:"budget,omitempty"`
	Message string `json:"message,omitempty"` // reason why the pod was not evicted
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

// Blocking returns the pods in p.Pods that are not ending.
func (p DrainProgress) Blocking() []DrainPod {
	return slices.DeleteFunc(slices.Clone(p.Pods), func(p DrainPod) bool { return p.State == DrainEnding })
}

// Remaining returns a text about the pods that are left and the problem, separated by semicolons.
// It is empty if no pod is left and there is no problem.
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
