package ondemand

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// PendingTime is how long a pod must be unschedulable before it adds a machine.
	PendingTime = 30 * time.Second
	// IdleTime is how long a machine must have no pods before it is removed. It is also how long a
	// MachineDeployment keeps a replica for which the inventory has no machine.
	IdleTime = 10 * time.Minute
	// LostTime is how long a machine may be unready before it is not expected to take pods.
	LostTime = 15 * time.Minute
	// HelpTime is how long a new or empty machine must have space for a pod until the pod counts as
	// one that machines do not help. The scheduler takes seconds.
	HelpTime = 3 * time.Minute
	// SettleTime is how long a machine must be ready before its shape is remembered. In this time,
	// programs of the site may remove taints, and DaemonSets start their pods.
	SettleTime = 2 * time.Minute
	// longestStep is the longest time between two decisions that counts for HelpTime.
	longestStep = time.Minute
	// maxUnhelped is the largest number of pods that are remembered for a MachineDeployment.
	maxUnhelped = 100
)

// Resources are the resources of a machine, or the requests of a pod.
type Resources struct {
	CPU    int64 `json:"cpu"`    // in thousandths of a processor
	Memory int64 `json:"memory"` // in bytes
	Pods   int64 `json:"pods"`   // the number of pods; 1 for a pod
}

// Taint is a taint that keeps pods away. Taints with the effect PreferNoSchedule are omitted.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

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

// Shape describes what pods a machine can take.
type Shape struct {
	Resources                   // for pods, without those of DaemonSets
	Labels    map[string]string `json:"labels,omitempty"`
	Taints    []Taint           `json:"taints,omitempty"`
}

// Equal reports whether two shapes are the same; nil is a shape that is unknown.
func (s *Shape) Equal(o *Shape) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Resources == o.Resources && maps.Equal(s.Labels, o.Labels) && slices.Equal(s.Taints, o.Taints)
}

// Pod is a pod that the scheduler has found unschedulable.
type Pod struct {
	Name  string    // NAMESPACE/NAME
	UID   string    // identifies the pod: another pod can have its name later
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
	Name string
	// Whole is what the machine can take when it is empty, without taints that Kubernetes sets for
	// a time. Room is what it can take at present. Both are nil while its Node is not ready.
	Whole, Room *Shape
	Joined      time.Time // the creation of its Node
	// Empty means that its Node has only pods of DaemonSets, static pods and pods that have ended.
	Empty bool
	// Kept means that an operator has excluded the machine from removal, or that the MachineSet
	// cannot remove it.
	Kept bool
	// Marked means that the controllers have marked the machine for removal. Chosen means that an
	// operator has marked it.
	Marked, Chosen bool
}

// ready reports whether the Node of the machine is ready.
func (o Machine) ready() bool { return o.Room != nil }

// Deployment is a MachineDeployment with a minimum and a maximum.
type Deployment struct {
	Name      string
	Problem   string // why it cannot be scaled, such as a wrong annotation; empty if it can
	Min, Max  int
	Replicas  int
	Machines  []Machine
	IsLeaving bool // a machine leaves the cluster at present
	Shapes
	// Unhelped has the UIDs of the pods in Verdict.Unhelped that were stored.
	Unhelped []string
}

// Shapes are the sources of the shape of a machine that a MachineDeployment would add, besides its
// ready machines. Each is nil if it is unknown.
type Shapes struct {
	Last      *Shape // the shape in Verdict.Last that was stored: that of a former machine
	Stated    *Shape // in the annotations of the MachineDeployment
	Estimated *Shape // from the inventory; labels and taints are unknown
}

// shape returns the shape of a machine that the MachineDeployment would add: that of a ready
// machine, of a former machine, of the annotations or of the inventory. nil if all are unknown. A
// real machine is the best source: a wrong statement or estimate would add machines again and again
// for a pod that does not fit.
func (d Deployment) shape() *Shape {
	return cmp.Or(d.present(func(Machine) bool { return true }), d.Last, d.Stated, d.Estimated)
}

// present returns the shape of the first ready machine, in the order of the names, for which use
// returns true; nil if there is none.
func (d Deployment) present(use func(Machine) bool) *Shape {
	var first Machine
	for _, o := range d.Machines {
		if o.ready() && use(o) && (first.Whole == nil || o.Name < first.Name) {
			first = o
		}
	}
	return first.Whole
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
	// Idle has the time since which a machine is empty, by its name. Ready and Unready have the
	// times since which it is ready or not. Quiet has the time since which no pod waits for a
	// machine of a MachineDeployment, by its name.
	Idle, Ready, Unready, Quiet map[string]time.Time
	// At is the time of the last decision.
	At time.Time
	// Roomy has how long a pod waited although a new or empty machine had space for it. Unhelped
	// has the pods for which this lasted for HelpTime. The keys are the MachineDeployment and the
	// UID of the pod.
	Roomy    map[podKey]time.Duration
	Unhelped map[podKey]bool
}

// podKey is a pod that waits for a machine of a MachineDeployment.
type podKey struct{ deployment, uid string }
