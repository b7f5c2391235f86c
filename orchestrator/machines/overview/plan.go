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
	// observedInterval is the shortest time between two writes of the status that change only
	// status.observed. It limits the load on etcd.
	observedInterval = 5 * time.Minute
	// staleAfter is the age from which a report is not used any more. machined writes a report
	// every minute.
	staleAfter = 3 * time.Minute
	// maxListed is the largest number of entries in a list of problems, notes or machines in a
	// status.
	maxListed = 32
	// maxVersions is the largest number of entries in ClusterHealth.status.versions.
	maxVersions = 16
	// maxExtensions is the largest number of entries in Component.status.extensions.
	maxExtensions = 256
)

// Snapshot is the state of the cluster as a whole.
type Snapshot struct {
	Now     time.Time
	Cluster string // name of the cluster and of its ClusterHealth
	Own     string // name of the machine on which this process runs
	Report  Report // the last report of machined
	Parts   []Part
	Addons  []Addon
	// Registered are the admission webhooks and admission policies in the cluster.
	Registered []machineapi.Extension
	Health     *machineapi.ClusterHealth // nil: it does not exist
	Components []*machineapi.Component
}

// These are the values of Part.RunsOn.
const (
	ControlPlane = "ControlPlane" // each control-plane machine
	Workers      = "Workers"      // each worker
	All          = "All"          // each machine
	Leader       = "Leader"       // runs on each control-plane machine, works on the leader only
	External     = "External"     // an add-on replaces the component (Cluster.spec.external)
)

// Part is a component of the system.
type Part struct {
	Name, Process, RunsOn string
	// Kubernetes means that the component is a part of Kubernetes and has the version of
	// Kubernetes.
	Kubernetes bool
	Extensions []machineapi.Extension
}

// Addon is an add-on with its state.
type Addon struct {
	Name  string
	Ready bool
	Line  string // a line about its state for operators
}

// Verb is the kind of a change.
type Verb string

// These are the verbs of a change.
const (
	Create Verb = "create"
	Status Verb = "write status"
	Delete Verb = "delete" // a Component that does not exist any more
)

// Change is a change of the object in Health or in Component. The other field is nil. The object
// has the resource version that Plan has seen, so a write fails if the object has changed since.
type Change struct {
	Verb      Verb
	Health    *machineapi.ClusterHealth
	Component *machineapi.Component
}

// String returns the verb and the name of the object.
func (c Change) String() string {
	if c.Health != nil {
		return string(c.Verb) + " ClusterHealth " + c.Health.Name
	}
	return string(c.Verb) + " Component " + c.Component.Name
}

// Plan returns the changes to make. It creates a missing object first, and writes its status in the
// next pass. After all changes are made, Plan returns no further change.
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

// sameHealth reports whether the status needs no write: the statuses are equal, or differ only in
// status.observed by less than observedInterval.
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

// set adds or replaces conditions. A condition keeps its transition time if its status does not
// change.
func (s Snapshot) set(all *[]metav1.Condition, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(s.Now.Truncate(time.Second))
		c.Reason = cmp.Or(c.Reason, reasonUnknown)
		meta.SetStatusCondition(all, c)
	}
}

// fresh reports whether there is a report that is younger than staleAfter. The time of the report
// is from the clock of this machine.
func (s Snapshot) fresh() bool {
	return s.Report.Health != nil && s.Now.Sub(s.Report.Health.At.AsTime()) < staleAfter
}
