package overview

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

const (
	// observedInterval is the time between two writes of status.observed without another change,
	// because each of them reaches etcd.
	observedInterval = 5 * time.Minute
	// staleAfter is the age of a report after which the state is unknown. machined writes a report
	// every minute.
	staleAfter = 3 * time.Minute
	// maxListed is the limit of the lists in a status.
	maxListed = 32
	// maxVersions is the limit of ClusterHealth.status.versions.
	maxVersions = 16
	// maxExtensions is the limit of Component.status.extensions.
	maxExtensions = 256
)

// Snapshot is the state of the cluster as a whole.
type Snapshot struct {
	Now     time.Time
	Cluster string // its name, and the name of its ClusterHealth
	Own     string // the machine on which the controllers run
	Report  Report // by machined
	Parts   []Part
	Addons  []Addon
	// Registered are the webhooks and policies of admission, which are objects of Kubernetes.
	Registered []machineapi.Extension
	Health     *machineapi.ClusterHealth // nil: it does not exist
	Components []*machineapi.Component
}

// The values of Part.RunsOn.
const (
	ControlPlane = "ControlPlane" // each control-plane machine
	Workers      = "Workers"      // each worker
	All          = "All"          // each machine
	Leader       = "Leader"       // ready on each control-plane machine, works on a single machine
	External     = "External"     // an add-on replaces the component (Cluster.spec.external)
)

// Part is a component of the system.
type Part struct {
	Name, Process, RunsOn string
	// Kubernetes reports whether the component is a program of Kubernetes, with its version.
	Kubernetes bool
	Extensions []machineapi.Extension
}

// Addon is an add-on with its state.
type Addon struct {
	Name  string
	Ready bool
	Line  string // its state for operators
}

// Verb is the kind of a change.
type Verb string

// The verbs.
const (
	Create Verb = "create"
	Status Verb = "write status"
	Delete Verb = "delete" // a Component that does not exist any more
)

// Change is a change of an object; the other field is nil. Its version is the version that Plan
// has seen, so a write fails if the object has changed since.
type Change struct {
	Verb      Verb
	Health    *machineapi.ClusterHealth
	Component *machineapi.Component
}

// String returns the verb and the object.
func (c Change) String() string {
	if c.Health != nil {
		return string(c.Verb) + " ClusterHealth " + c.Health.Name
	}
	return string(c.Verb) + " Component " + c.Component.Name
}

// Plan computes the changes. The status of a new object comes with the next pass. After all
// changes, Plan of the new state has none.
func Plan(s Snapshot) []Change {
	var changes []Change
	if s.Health == nil {
		changes = append(changes, Change{Verb: Create, Health: &machineapi.ClusterHealth{ObjectMeta: s.meta(s.Cluster)}})
	} else if next := s.health(); !sameHealth(s.Health.Status, next.Status, s.Now) {
		changes = append(changes, Change{Verb: Status, Health: next})
	}
	wanted := map[string]bool{}
	for _, want := range s.components() {
		wanted[want.Name] = true
		have := find(s.Components, want.Name)
		if have == nil {
			changes = append(changes, Change{Verb: Create, Component: &machineapi.Component{ObjectMeta: s.meta(want.Name)}})
			continue
		}
		next := have.DeepCopy()
		next.Status = want.Status
		if next.Status.Conditions = slices.Clone(have.Status.Conditions); !s.fresh() {
			next.Status.Machines, next.Status.ReadyMachines, next.Status.NotReady = have.Status.Machines, have.Status.ReadyMachines, have.Status.NotReady
		}
		s.set(&next.Status.Conditions, want.Status.Conditions...)
		if !equality.Semantic.DeepEqual(have.Status, next.Status) {
			changes = append(changes, Change{Verb: Status, Component: next})
		}
	}
	for _, have := range s.Components {
		if !wanted[have.Name] {
			changes = append(changes, Change{Verb: Delete, Component: have})
		}
	}
	return changes
}

// sameHealth reports whether a status needs no write: only the time of the observation differs, and
// not by much.
func sameHealth(have, next machineapi.ClusterHealthStatus, now time.Time) bool {
	if next.Observed != nil && (have.Observed == nil || now.Sub(have.Observed.Time) >= observedInterval) {
		return false
	}
	have.Observed, next.Observed = nil, nil
	return equality.Semantic.DeepEqual(have, next)
}

func (s Snapshot) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: machineapi.Namespace}
}

func find(all []*machineapi.Component, name string) *machineapi.Component {
	i := slices.IndexFunc(all, func(c *machineapi.Component) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return all[i]
}

// set sets conditions. A condition keeps the time of its transition if its status does not change.
func (s Snapshot) set(all *[]metav1.Condition, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(s.Now.Truncate(time.Second))
		c.Reason = cmp.Or(c.Reason, reasonUnknown)
		meta.SetStatusCondition(all, c)
	}
}

// fresh reports whether the report of machined is recent. Both clocks are the clock of this
// machine.
func (s Snapshot) fresh() bool {
	return s.Report.Health != nil && s.Now.Sub(s.Report.Health.At.AsTime()) < staleAfter
}
