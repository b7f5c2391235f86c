package nodespec

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// DrainRequest is the JSON input of `orchestrator drain`. Without Refuse and Delete, a pod that its
// disruption budget still protects at the timeout stays, and ends with the machine.
type DrainRequest struct {
	// Node is another node than that of this machine. Then the command uses the identity of the
	// controllers; otherwise that of the kubelet.
	Node string `json:"node,omitempty"`
	// Operation needs the drain, By is its author. The conditions of the Node show both.
	Operation string        `json:"operation"`
	By        string        `json:"by"`
	Timeout   time.Duration `json:"timeout"` // for all pods together
	// undo the drain if a disruption budget protects a pod until the timeout
	Refuse bool `json:"refuse"`
	Delete bool `json:"delete"` // delete such a pod at once
	// instead of a drain, undo it, because the operation behind the drain did not happen
	Undo bool `json:"undo"`
}

// DrainProgress is the progress of a drain. `orchestrator drain` writes it to descriptor 3 after
// each change, as a line of JSON.
type DrainProgress struct {
	Evicted int `json:"evicted"` // pods with an accepted eviction
	Left    int `json:"left"`    // pods that are still there
	// Pods are the first MaxDrainPods of the pods that are left: the pods that block the drain, and
	// then the pods that end.
	Pods []DrainPod `json:"pods,omitempty"`
	// Problem is the reason for which the last round was not complete, for example an API server
	// that does not answer; empty if it was.
	Problem string `json:"problem,omitempty"`
}

// DrainResult is the output of `orchestrator drain`.
type DrainResult struct {
	DrainProgress
	Refused bool `json:"refused"` // the drain failed by Refuse: the node is schedulable again
}

// DrainPhase is the phase of a drain of machined (topic "drain"), also in the object of a machine.
type DrainPhase string

// The phases. A drain in phase PhaseDrained or PhaseIncomplete is undone if the operation does not
// happen.
const (
	PhaseRunning    DrainPhase = "running"
	PhaseDrained    DrainPhase = "drained"    // no pod is left
	PhaseIncomplete DrainPhase = "incomplete" // pods are left; the policy permits the operation
	PhaseRefused    DrainPhase = "refused"    // pods are left; the policy refuses; undone
	PhaseGivenUp    DrainPhase = "given up"   // a caller has given it up; undone
	PhaseUndone     DrainPhase = "undone"     // the operation did not happen
)

// MaxDrainPods is the largest number of pods that a progress lists.
const MaxDrainPods = 32

// DrainPodState is the state of a pod that is left.
type DrainPodState string

// The states of a pod that is left.
const (
	DrainEnding  DrainPodState = "ending"  // it was evicted, and has its grace period
	DrainBlocked DrainPodState = "blocked" // its disruption budget forbids the eviction at present
	DrainFailed  DrainPodState = "failed"  // its eviction fails for another reason
)

// DrainPod is a pod that is left.
type DrainPod struct {
	Pod   string        `json:"pod"` // "namespace/name"
	State DrainPodState `json:"state"`
	// Budget is the name of the PodDisruptionBudget that blocks the pod, in the namespace of the
	// pod; empty if the answer of the API server names none.
	Budget  string `json:"budget,omitempty"`
	Message string `json:"message,omitempty"` // the reason of the API server
}

// String is "pod default/web: must stay: …".
func (p DrainPod) String() string {
	switch p.State {
	case DrainBlocked:
		return fmt.Sprintf("pod %s: must stay: %s", p.Pod, p.Message)
	case DrainFailed:
		return fmt.Sprintf("pod %s: cannot evict: %s", p.Pod, p.Message)
	}
	return fmt.Sprintf("pod %s: still ending", p.Pod)
}

// Blocking returns the pods in the list that do not end.
func (p DrainProgress) Blocking() []DrainPod {
	return slices.DeleteFunc(slices.Clone(p.Pods), func(p DrainPod) bool { return p.State == DrainEnding })
}

// Remaining describes the pods that are left and the problem, separated by semicolons; empty if the
// drain is complete.
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
