package machines

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/machines/claims"
	"github.com/orlop-os/orlop/orchestrator/machines/power"
	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// Settings are the values of the cluster that the objects contain.
type Settings struct {
	Name     string // name of the cluster and of its objects
	Host     string // host of the endpoint of the Kubernetes API
	Port     int32
	Pods     []string // CIDR ranges
	Services []string // CIDR ranges
	Domain   string
	// addresses of the control-plane machines; may be empty for one machine
	ControlPlanes []netip.Addr
	Own           string // name of the control-plane machine on which the controllers run
	Claims        bool   // MachineSets claim waiting machines
}

// Snapshot is the state of all objects. A missing object is nil.
type Snapshot struct {
	Settings     Settings
	Now          time.Time
	Nodes        []*corev1.Node
	Cluster      *clusterv1.Cluster
	OrlopCluster *machineapi.OrlopCluster
	ControlPlane *controlplane.OrlopControlPlane
	Machines     []*clusterv1.Machine
	Own          []*machineapi.OrlopMachine
	// Jobs and CronJobs are those in the namespace of the machine objects. They are gates of a
	// rollout.
	Jobs     []*batchv1.Job
	CronJobs []*batchv1.CronJob
	// Checks are the MachineHealthChecks of this cluster.
	Checks []*clusterv1.MachineHealthCheck
	// Power has the facts about the machines whose power switch a decision needs, by name.
	Power map[string]power.Facts
	// Leases are the Leases of all kubelets, by the names of their Nodes; nil if no decision needs
	// the Leases. LeasesRead is the time before they were read.
	Leases     map[string]*coordinationv1.Lease
	LeasesRead time.Time
}

// Verb is the kind of a change.
type Verb string

// These are the verbs of a change.
const (
	Create   Verb = "create"       // create the object
	Status   Verb = "write status" // write the status of the object
	Permit   Verb = "permit"       // write spec.permit of an OrlopMachine; nil removes it
	Repair   Verb = "repair"       // write spec.repair of an OrlopMachine; nil removes it
	Fence    Verb = "fence"        // write spec.fence of an OrlopMachine; nil removes it
	Taint    Verb = "taint"        // write spec.taints of a Node
	Identify Verb = "identify"     // write spec.providerID of a Node
)

// Change is a change of an object. Object is the object with the new content and the resource
// version that Plan has seen. A write therefore fails if the object has changed since.
type Change struct {
	Verb   Verb
	Object runtime.Object
}

// String returns the verb and the name of the object.
func (c Change) String() string { return string(c.Verb) + " " + describe(c.Object) }

// Result is the output of Plan.
type Result struct {
	Changes []Change
	// Summary is a line for operators.
	Summary string
	// Permits reports whether a change gives a permit or an order, or whether a power switch is
	// operated. The snapshot of such a plan must not be stale (packages rollout, repair and fence).
	Permits bool
	// Calls are the requests to power switches. They follow the changes.
	Calls []powerCall
}

// machine is a machine with all objects that describe it.
type machine struct {
	name         string
	controlPlane bool
	node         *corev1.Node // nil: the Node does not exist
	object       *clusterv1.Machine
	own          *machineapi.OrlopMachine
	want         machineapi.ReleaseReference
	problem      string   // the reason why the wanted release is unknown
	peers        []string // addresses of machines that run the wanted release
	verdict      rollout.Verdict
	ready        health
	care         care
}

// Plan returns the changes to make. It is pure. After all changes are made, Plan returns no further
// change. It fails if the rules of the rollout are invalid.
func Plan(s Snapshot) (Result, error) {
	var r Result
	if s.adoptCluster(&r); len(r.Changes) > 0 {
		// All other objects refer to these objects by UID, so they follow in a later pass.
		r.Summary = "creating the objects of the cluster"
		return r, nil
	}
	// From here on, the objects of the cluster exist.
	all := s.machines()
	for _, m := range all {
		s.adopt(&r, m)
	}
	// A claimed machine that has not joined yet is no part of a rollout.
	all = slices.DeleteFunc(all, func(m *machine) bool {
		if m.joining() {
			s.machineStatus(&r, m)
		}
		return m.joining()
	})
	world, err := s.world(all)
	if err != nil {
		return r, err
	}
	jobs := s.decide(world, all)
	for _, m := range all {
		if m.verdict.State == rollout.Permitted {
			m.peers = peers(all, m)
		}
	}
	s.repairs(&r, all, world.Policy.MaxUnavailable)
	for _, m := range all {
		s.permit(&r, m)
		s.machineStatus(&r, m)
	}
	s.clusterStatus(&r, all)
	for _, job := range jobs { // last, because a quota can make the creation fail
		r.Changes = append(r.Changes, Change{Create, job})
	}
	r.Summary = summary(all)
	return r, nil
}

// machines returns a machine for each name of a Node or a Machine, with all objects of this name,
// sorted by name.
func (s Snapshot) machines() []*machine {
	byName := map[string]*machine{}
	get := func(name string) *machine {
		if byName[name] == nil {
			byName[name] = &machine{name: name}
		}
		return byName[name]
	}
	for _, o := range s.Machines {
		get(o.Name).object = o
	}
	for _, n := range s.Nodes {
		get(n.Name).node = n
	}
	for _, o := range s.Own {
		get(o.Name).own = o
	}
	var all []*machine
	for _, m := range byName {
		if m.node == nil && m.object == nil {
			continue // the garbage collector will delete this OrlopMachine
		}
		m.controlPlane = s.isControlPlane(m)
		m.want, m.problem = s.wanted(m)
		m.ready = m.health()
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *machine) int { return strings.Compare(a.name, b.name) })
	return all
}

// joining reports whether a MachineSet has claimed the machine and the machine has never had a
// Node.
func (m *machine) joining() bool {
	return m.node == nil && m.object != nil && m.object.Status.NodeRef.Name == "" && slices.Contains(m.object.Finalizers, claims.Finalizer)
}

// isControlPlane reports whether a machine is a control-plane machine. If the OrlopMachine exists,
// its role decides, because a machine cannot change its role.
func (s Snapshot) isControlPlane(m *machine) bool {
	if m.own != nil {
		return m.own.Spec.Role == machineapi.RoleControlPlane
	}
	if m.name == s.Settings.Own {
		return true
	}
	if m.node == nil {
		return false
	}
	if _, labelled := m.node.Labels[bootstrap.ControlPlaneKey]; labelled {
		return true
	}
	return slices.ContainsFunc(m.node.Status.Addresses, func(a corev1.NodeAddress) bool {
		ip, err := netip.ParseAddr(a.Address)
		return err == nil && slices.Contains(s.Settings.ControlPlanes, ip.Unmap())
	})
}

// wanted returns the wanted release of a machine. If no release can be determined, problem is the
// reason. If release and problem are both empty, the machine keeps its release.
func (s Snapshot) wanted(m *machine) (release machineapi.ReleaseReference, problem string) {
	catalogue := s.OrlopCluster.Spec.Releases
	if m.own == nil || m.object == nil {
		return release, ""
	}
	have := m.own.Status.Release
	switch {
	case m.own.Spec.Release != nil:
		release = *m.own.Spec.Release
		for _, r := range catalogue {
			if r.Version == release.Version && release.Image == "" {
				release.Image = r.Image
			}
		}
	case m.object.Spec.Version != "":
		newest := newestRelease(catalogue, m.object.Spec.Version)
		if newest == nil && have != nil && sameKubernetes(have.Kubernetes, m.object.Spec.Version) {
			return release, ""
		}
		if newest == nil {
			return release, fmt.Sprintf("no release in spec.releases of the OrlopCluster %s has Kubernetes %s: add it", s.Settings.Name, m.object.Spec.Version)
		}
		release = machineapi.ReleaseReference{Version: newest.Version, Image: newest.Image}
	}
	if release.Version != "" && have == nil {
		return machineapi.ReleaseReference{}, "the machine has not reported its release: enable Cluster.spec.kubernetes.machineObjects in its configuration"
	}
	return release, ""
}

// peers returns the addresses of at most maxPeers other machines that run the wanted release of a
// machine, so that this machine can download the bundle from them. It omits addresses that are no
// IP addresses, because a kubelet can write any text to its Node, and such a text would make the
// permit invalid. A control-plane machine gets no workers as peers, because a stolen worker could
// delay the control plane by a false report of its release.
func peers(all []*machine, to *machine) []string {
	var found []string
	for _, m := range all {
		if m == to || to.controlPlane && !m.controlPlane || m.node == nil || m.have() != to.want.Version || m.own.Status.Release.OnTrial || m.ready.status != metav1.ConditionTrue {
			continue
		}
		for _, a := range m.node.Status.Addresses {
			if _, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				found = append(found, a.Address)
				break
			}
		}
		if len(found) == maxPeers {
			break
		}
	}
	return found
}

// maxPeers is the limit of the list Permit.peers in the CustomResourceDefinition.
const maxPeers = 8

// have returns the version of the running release, or "" if the machine has not reported it.
func (m *machine) have() string {
	if m.own == nil || m.own.Status.Release == nil {
		return ""
	}
	return m.own.Status.Release.Version
}

// summary returns a line about the rollout, with the first machine that does not run its wanted
// release.
func summary(all []*machine) string {
	behind, waits := 0, ""
	for _, m := range all {
		if c := m.upToDate(); c.Status != metav1.ConditionTrue {
			behind++
			waits = cmp.Or(waits, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", m.name, c.Reason, c.Message), ": "))
		}
	}
	if behind == 0 {
		return fmt.Sprintf("%d machines", len(all))
	}
	return fmt.Sprintf("%d machines, %d of them behind their wanted release (%s)", len(all), behind, waits)
}
