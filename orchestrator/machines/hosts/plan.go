// Package hosts computes the OrlopHost objects of waiting machines, which are machines without a
// configuration (docs/decisions/0103-inventory.md). It also decides which waiting machines an
// approval rule approves (rules.go, docs/decisions/0120-approval-rules.md). Plan is pure. Package
// machines reads the objects and performs the changes.
package hosts

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
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
}

// Verb is the kind of a change.
type Verb string

// These are the verbs of a change.
const (
	Create  Verb = "create"
	Status  Verb = "write status"
	Approve Verb = "write approval" // write spec.approval of an OrlopHost; nil withdraws it
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
}

// Plan returns the changes to make. After all changes are made, Plan returns no further change.
func Plan(s Snapshot) []Change {
	decided := decide(s)
	p := plan{s, decided.verdicts}
	changes := decided.approvals
	byName, count := map[string]*machineapi.OrlopHost{}, len(s.Objects)
	for _, o := range s.Objects {
		byName[o.Name] = o
	}
	waiting := map[string]bool{}
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
			waiting[name] = true
			changes = append(changes, p.describe(object, e)...)
		}
	}
	for _, o := range s.Objects {
		if !waiting[o.Name] {
			changes = append(changes, p.silent(o)...)
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return append(changes, decided.status...)
}

// describe returns the change, if any, that writes the state of a waiting machine to the status of
// its object.
func (p plan) describe(o *machineapi.OrlopHost, e inventory.Entry) []Change {
	next := o.DeepCopy()
	next.Status.Address, next.Status.Inventory = e.Address.String(), describeHost(e.Host)
	p.setConditions(next, true)
	seen := metav1.NewTime(e.Last.Truncate(time.Second))
	if old := o.Status.LastSeen; old == nil || seen.Sub(old.Time) >= seenInterval {
		next.Status.LastSeen = &seen
	}
	return changed(o, next)
}

// silent returns the change, if any, of the object of a machine that machined does not list: a
// deletion or a new status.
func (p plan) silent(o *machineapi.OrlopHost) []Change {
	since := o.CreationTimestamp.Time
	if seen := o.Status.LastSeen; seen != nil && seen.After(since) {
		since = seen.Time
	}
	quiet := p.Now.Sub(since)
	switch {
	case o.DeletionTimestamp != nil:
		return nil
	// The machine has joined the cluster, and the OrlopMachine describes it. If the machine is
	// reset later, it gets another key and therefore another OrlopHost.
	case slices.Contains(p.Listing.Members, o.Spec.Fingerprint):
		return []Change{{Verb: Delete, Object: o}}
	case quiet >= deleteAfter && !o.Approved():
		return []Change{{Verb: Delete, Object: o}}
	}
	next := o.DeepCopy()
	p.setConditions(next, quiet < silentAfter && meta.IsStatusConditionTrue(o.Status.Conditions, machineapi.ConditionWaiting))
	return changed(o, next)
}

// changed returns the change that writes the status of next, or nil if the status is the same.
func changed(before, next *machineapi.OrlopHost) []Change {
	if equality.Semantic.DeepEqual(before.Status, next.Status) {
		return nil
	}
	return []Change{{Verb: Status, Object: next}}
}

func (p plan) setConditions(o *machineapi.OrlopHost, waits bool) {
	set := func(kind string, status bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: o.Generation, LastTransitionTime: metav1.NewTime(p.Now)}
		if status {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
	if waits {
		set(machineapi.ConditionWaiting, true, "NoConfiguration", "the machine waits for a configuration")
	} else {
		set(machineapi.ConditionWaiting, false, "Silent", "the machine sends no inventory: it is off, has a configuration, or does not reach the control plane")
	}
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
