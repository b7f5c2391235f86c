// Package hosts computes the OrlopHost objects of waiting machines, which are machines without a
// configuration (docs/decisions/0103-inventory.md). It also decides which waiting machines an
// approval rule approves (rules.go, docs/decisions/0120-approval-rules.md), and when the power
// switch of a host is operated (standby.go, docs/decisions/0125-power-of-claims.md). Plan is pure.
// Package machines reads the objects and performs the changes.
package hosts

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

const (
	// maxObjects is the largest number of OrlopHosts for which Plan creates another one. The list
	// of machined has at most 64 machines, but an attacker can send inventories with other keys
	// each time.
	maxObjects = 128
	// seenInterval is the shortest time between two writes of status.lastSeen. It limits the load
	// on etcd.
	seenInterval = 2 * time.Minute
	// silentAfter is the time since status.lastSeen from which a machine that is not listed does
	// not count as waiting. It is longer than seenInterval and the time for which machined lists a
	// machine. If the leader changes and the machined of the new leader still has an empty list,
	// the controllers therefore change no object.
	silentAfter = 6 * time.Minute
	// deleteAfter is the time since status.lastSeen after which Plan deletes an object without an
	// approval.
	deleteAfter = 10 * time.Minute
)

// Snapshot is the input of Plan.
type Snapshot struct {
	Now     time.Time
	Listing inventory.Listing // the list of machined
	Objects []*machineapi.OrlopHost
	Rules   []*machineapi.OrlopApprovalRule
	// Operate means that power switches of hosts are operated, because claims are enabled.
	Operate bool
	// Power has the power switches of the hosts that NeedPower returns, by the names of the hosts.
	Power map[string]fence.Switch
	// Boards has texts that identify the controllers (BMC), by the names of their Secrets. nil
	// means that the Secrets were not read. Then no power switch is operated.
	Boards map[string]string
	// Nodes and Own are the members of the cluster.
	Nodes []*corev1.Node
	Own   []*machineapi.OrlopMachine
}

// Result is the output of Plan.
type Result struct {
	Changes []Change
	// Calls are the requests to power switches, which follow the changes. The caller first checks
	// that the host has not changed since Plan has seen it. Otherwise it must not be switched on or
	// off.
	Calls []Call
}

// Verb is the kind of a change.
type Verb string

// These are the verbs of a change.
const (
	Create  Verb = "create"
	Status  Verb = "write status"
	Approve Verb = "write approval" // write spec.approval of an OrlopHost; nil withdraws it
	Power   Verb = "write standby"  // write spec.standby of an OrlopHost; nil removes it
	Equip   Verb = "equip"          // write labels, spec.power and spec.standby of an OrlopHost
	Delete  Verb = "delete"
)

// Change is a change of the object in Object or in Rule. The object has the new content and the
// resource version that Plan has seen, so a write fails if the object has changed since.
type Change struct {
	Verb   Verb
	Object *machineapi.OrlopHost
	Rule   *machineapi.OrlopApprovalRule // set instead of Object
}

// String returns the verb and the name of the object.
func (c Change) String() string {
	if c.Rule != nil {
		return string(c.Verb) + " OrlopApprovalRule " + c.Rule.Name
	}
	return string(c.Verb) + " OrlopHost " + c.Object.Name
}

// plan is the state of a call of Plan.
type plan struct {
	Snapshot
	verdicts map[string]verdict // decisions of the rules, by name of the host
	// power has the decisions about power switches, by name of the host.
	power map[string]standby.Verdict
	// stated has the hosts by the UUID that they state.
	stated  map[string][]*machineapi.OrlopHost
	members members
	changes []Change
	calls   []Call
}

func newPlan(s Snapshot) plan {
	return plan{Snapshot: s, stated: byUUID(s.Objects), members: membersOf(s)}
}

// Plan returns the changes to make. After all changes are made, Plan returns no further change.
func Plan(s Snapshot) Result {
	decided := decide(s)
	p := newPlan(s)
	p.verdicts = decided.verdicts
	p.standbys()
	changes := append(decided.approvals, p.changes...)
	byName, count := map[string]*machineapi.OrlopHost{}, 0
	for _, o := range s.Objects {
		if byName[o.Name] = o; o.Spec.Power == nil { // an operator has chosen the others
			count++
		}
	}
	listed := map[string]bool{}
	for _, e := range s.Listing.Waiting {
		name := machineapi.HostName(e.Key)
		object, found := byName[name]
		switch {
		case !found && count < maxObjects:
			count++
			changes = append(changes, Change{Verb: Create, Object: &machineapi.OrlopHost{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: machineapi.Namespace}, Spec: machineapi.OrlopHostSpec{Fingerprint: e.Key},
			}})
		// An object with this name and another fingerprint belongs to another program, so Plan does
		// not change it.
		case found && object.Spec.Fingerprint == e.Key:
			listed[name] = true
			changes = append(changes, p.describe(object, e)...)
		}
	}
	for _, o := range s.Objects {
		if !listed[o.Name] {
			changes = append(changes, p.silent(o)...)
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return Result{append(changes, decided.status...), p.calls}
}

// describe returns the change, if any, that writes the state of a waiting machine to the status of
// its object.
func (p plan) describe(o *machineapi.OrlopHost, e inventory.Entry) []Change {
	next := o.DeepCopy()
	next.Status.Address, next.Status.Inventory = e.Address.String(), describeHost(e.Host)
	p.setConditions(next, waiting)
	seen := metav1.NewTime(e.Last.Truncate(time.Second))
	if old := o.Status.LastSeen; old == nil || seen.Sub(old.Time) >= seenInterval {
		next.Status.LastSeen = &seen
	}
	return changed(o, next)
}

// silent returns the change, if any, of the object of a machine that machined does not list: a
// deletion or a new status.
func (p plan) silent(o *machineapi.OrlopHost) []Change {
	quiet := p.quiet(o)
	joined := slices.Contains(p.Listing.Members, o.Spec.Fingerprint)
	switch {
	case o.DeletionTimestamp != nil || p.power[o.Name].Obsolete:
		return nil
	// The machine has joined the cluster, and the OrlopMachine describes it. If the machine is
	// reset later, it gets another key and therefore another OrlopHost.
	case joined && !stays(o):
		return []Change{{Verb: Delete, Object: o}}
	case quiet >= deleteAfter && !o.Approved() && o.Spec.Power == nil:
		return []Change{{Verb: Delete, Object: o}}
	}
	next := o.DeepCopy()
	switch v := p.power[o.Name]; {
	case joined:
		p.setConditions(next, metav1.Condition{Status: metav1.ConditionFalse, Reason: "Joined", Message: "the machine is a member of the cluster"})
	case p.waits(o):
		p.setConditions(next, waiting)
	case v.Reason != "":
		p.setConditions(next, metav1.Condition{Status: metav1.ConditionFalse, Reason: v.Reason, Message: machineapi.ConditionMessage(v.Message)})
	default:
		p.setConditions(next, silent)
	}
	return changed(o, next)
}

// changed returns the change that writes the status of next, or nil if the status is the same.
func changed(before, next *machineapi.OrlopHost) []Change {
	if equality.Semantic.DeepEqual(before.Status, next.Status) {
		return nil
	}
	return []Change{{Verb: Status, Object: next}}
}

// waiting and silent are the states of condition Waiting of a machine without a power switch.
var (
	waiting = metav1.Condition{Status: metav1.ConditionTrue, Reason: "NoConfiguration", Message: "the machine waits for a configuration"}
	silent  = metav1.Condition{Status: metav1.ConditionFalse, Reason: "Silent", Message: "the machine sends no inventory: it is off, has a configuration, or does not reach the control plane"}
)

// setConditions sets condition Waiting to a state, and condition Approved.
func (p plan) setConditions(o *machineapi.OrlopHost, waits metav1.Condition) {
	put := func(c metav1.Condition) {
		c.ObservedGeneration, c.LastTransitionTime = o.Generation, metav1.NewTime(p.Now)
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
	set := func(kind string, status bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
		if status {
			c.Status = metav1.ConditionTrue
		}
		put(c)
	}
	waits.Type = machineapi.ConditionWaiting
	put(waits)
	switch v, decided := p.verdicts[o.Name]; {
	// Without the list of machined, the condition does not change.
	case o.Approved() && o.Spec.Approval.Rule != "" && !decided:
	case o.Approved() && o.Spec.Approval.Rule != "" && v.refusal != "":
		set(machineapi.ConditionApproved, false, "RuleRefused", v.refusal)
	case o.Approved() && o.Spec.Approval.Rule != "":
		set(machineapi.ConditionApproved, true, "Rule", "OrlopApprovalRule "+o.Spec.Approval.Rule+" approves the machine by the "+v.identity)
	case o.Approved():
		set(machineapi.ConditionApproved, true, "Fingerprint", "an operator has named the fingerprint of the machine")
	case v.refusal != "":
		set(machineapi.ConditionApproved, false, "RuleRefused", v.refusal)
	default:
		set(machineapi.ConditionApproved, false, "NotApproved", fmt.Sprintf("compare the fingerprint with the console of the machine, and set spec.approval.fingerprint to %s", o.Spec.Fingerprint))
	}
}

// describeHost converts an inventory to the form of the API. machined has checked that the
// inventory is within the limits of the API.
func describeHost(h inventory.Host) machineapi.HostInventory {
	out := machineapi.HostInventory{
		Serial: h.Serial, UUID: h.UUID, Vendor: h.Vendor, Product: h.Product, Firmware: h.Firmware, SecureBoot: h.SecureBoot, Controller: h.Controller, Release: h.Release,
		Medium: h.Medium, CPUModel: h.CPUModel, CPUs: int32(h.CPUs), MemoryMiB: h.MemoryMiB,
	}
	for _, d := range h.Disks {
		out.Disks = append(out.Disks, machineapi.HostDisk{Name: d.Name, SizeMiB: d.SizeMiB, Model: d.Model, Serial: d.Serial, Rotational: d.Rotational})
	}
	for _, n := range h.NICs {
		nic := machineapi.HostNIC{Name: n.Name, MAC: n.MAC, Driver: n.Driver, SpeedMbps: int32(n.SpeedMbps), Carrier: n.Carrier}
		for _, a := range n.Addresses {
			nic.Addresses = append(nic.Addresses, a.String())
		}
		for _, neighbor := range n.Neighbors {
			nic.Neighbors = append(nic.Neighbors, machineapi.HostNeighbor{System: neighbor.System, Port: neighbor.Port})
		}
		out.NICs = append(out.NICs, nic)
	}
	return out
}
