package ondemand

import (
	"slices"
	"time"
)

const (
	// PendingTime is how long a pod must be unschedulable before it adds a machine.
	PendingTime = 30 * time.Second
	// IdleTime is how long a machine must have no pods before it is removed. It is also how long a
	// MachineDeployment keeps a wish for a machine that the inventory cannot fulfill.
	IdleTime = 10 * time.Minute
	// LostTime is how long a machine may be unready before it is not expected to take pods.
	LostTime = 15 * time.Minute
)

// Resources are the resources of a machine, or the requests of a pod.
type Resources struct {
	CPU    int64 // in thousandths of a processor
	Memory int64 // in bytes
	Pods   int64 // the number of pods; 1 for a pod
}

// Taint is a taint that keeps pods away. Taints with the effect PreferNoSchedule are omitted.
type Taint struct{ Key, Value, Effect string }

// Toleration is a toleration of a pod.
type Toleration struct {
	Key    string // empty: every key
	Exists bool   // every value is tolerated
	Value  string
	Effect string // empty: every effect
}

func (t Toleration) tolerates(taint Taint) bool {
	key := t.Key == taint.Key || t.Key == "" && t.Exists
	return key && (t.Exists || t.Value == taint.Value) && (t.Effect == "" || t.Effect == taint.Effect)
}

// Shape describes a machine that a MachineDeployment would add.
type Shape struct {
	Resources // for pods, without those of DaemonSets
	Labels    map[string]string
	Taints    []Taint
}

// Pod is a pod that the scheduler has found unschedulable.
type Pod struct {
	Name  string    // NAMESPACE/NAME
	Since time.Time // the scheduler has found it unschedulable since then
	Resources
	// Selectors are the node selector and the required node affinity: the Node must match one of
	// them. Without an element every Node matches.
	Selectors   []Selector
	Tolerations []Toleration
}

// Selector reports whether the labels of a Node match.
type Selector func(labels map[string]string) bool

// fits reports whether an empty machine of this shape can take the pod.
func (s Shape) fits(p Pod) bool {
	if !p.within(s.Resources) {
		return false
	}
	if len(p.Selectors) > 0 && !slices.ContainsFunc(p.Selectors, func(match Selector) bool { return match(s.Labels) }) {
		return false
	}
	return !slices.ContainsFunc(s.Taints, func(t Taint) bool {
		return !slices.ContainsFunc(p.Tolerations, func(o Toleration) bool { return o.tolerates(t) })
	})
}

func (r Resources) within(free Resources) bool {
	return r.CPU <= free.CPU && r.Memory <= free.Memory && r.Pods <= free.Pods
}

func (r Resources) minus(o Resources) Resources {
	return Resources{r.CPU - o.CPU, r.Memory - o.Memory, r.Pods - o.Pods}
}

// Machine is a machine of a MachineDeployment that does not leave the cluster.
type Machine struct {
	Name  string
	Ready bool // its Node is ready
	// Empty means that its Node has only pods of DaemonSets, static pods and pods that have ended.
	Empty bool
	// Kept means that an operator has excluded the machine from removal.
	Kept bool
	// Marked means that the controllers have marked the machine for removal. Chosen means that an
	// operator has marked it.
	Marked, Chosen bool
}

// Deployment is a MachineDeployment with a minimum and a maximum.
type Deployment struct {
	Name      string
	Problem   string // why it cannot be scaled, such as a wrong annotation; empty if it can
	Min, Max  int
	Replicas  int
	Shape     *Shape // nil if it is unknown
	Machines  []Machine
	IsLeaving bool // a machine leaves the cluster at present
}

// World is the input of Decide.
type World struct {
	Now         time.Time
	Deployments []Deployment
	Pods        []Pod
}

// Memory is what the decisions remember. The zero value remembers nothing: after a change of the
// leader, all times begin again.
type Memory struct {
	// Idle has the time since which a machine is empty, by its name. Unready has the time since
	// which a machine is not ready. Quiet has the time since which no pod waits for a machine of a
	// MachineDeployment, by its name.
	Idle, Unready, Quiet map[string]time.Time
}
