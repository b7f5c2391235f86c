// Package hosts decides which OrlopHost objects describe the machines that wait for a configuration
// (docs/decisions/0103-inventory.md), and which of them a rule approves (rules.go,
// docs/decisions/0120-approval-rules.md). It is pure: package machines reads the list of machined
// and the objects, and makes the changes.
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
	// maxObjects bounds the objects. The list has at most 64 machines, but an attacker can use
	// other keys each time.
	maxObjects = 128
	// seenInterval is the shortest time between two writes of status.lastSeen, because each of them
	// reaches etcd.
	seenInterval = 2 * time.Minute
	// silentAfter is the time since status.lastSeen after which a machine does not wait any more.
	// It exceeds seenInterval and the time for which machined lists a machine, so another leader
	// with an empty list changes no object.
	silentAfter = 6 * time.Minute
	// deleteAfter is the time since status.lastSeen after which an object without an approval is
	// deleted.
	deleteAfter = 10 * time.Minute
)

// Snapshot is the state of all machines that wait.
type Snapshot struct {
	Now     time.Time
	Listing inventory.Listing // of machined
	Objects []*machineapi.OrlopHost
	Rules   []*machineapi.OrlopApprovalRule
}

// Verb is the kind of a change.
type Verb string

// The verbs.
const (
	Create  Verb = "create"
	Status  Verb = "write status"
	Approve Verb = "write approval" // write spec.approval of an OrlopHost; nil withdraws it
	Delete  Verb = "delete"
)

// Change is a change of an object, with its new content. Its version is the version that Plan has
// seen, so a write fails if the object has changed since.
type Change struct {
	Verb   Verb
	Object *machineapi.OrlopHost
	Rule   *machineapi.OrlopApprovalRule // instead of Object
}

// String returns the verb and the object.
func (c Change) String() string {
	if c.Rule != nil {
		return string(c.Verb) + " OrlopApprovalRule " + c.Rule.Name
	}
	return string(c.Verb) + " OrlopHost " + c.Object.Name
}

// plan is a plan in progress.
type plan struct {
	Snapshot
	verdicts map[string]verdict // of rules about hosts, by their names
}

// Plan computes the changes. After all changes, Plan of the new state has none.
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
		// An object with this name and another fingerprint is not of the controllers.
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

// describe returns the change after which an object shows a machine that waits.
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

// silent returns the change of an object of a machine that is not listed.
func (p plan) silent(o *machineapi.OrlopHost) []Change {
	since := o.CreationTimestamp.Time
	if seen := o.Status.LastSeen; seen != nil && seen.After(since) {
		since = seen.Time
	}
	quiet := p.Now.Sub(since)
	switch {
	case o.DeletionTimestamp != nil:
		return nil
	// The OrlopMachine describes it from now on. A machine that is reset later gets another key.
	case slices.Contains(p.Listing.Members, o.Spec.Fingerprint):
		return []Change{{Verb: Delete, Object: o}}
	case quiet >= deleteAfter && !o.Approved():
		return []Change{{Verb: Delete, Object: o}}
	}
	next := o.DeepCopy()
	p.setConditions(next, quiet < silentAfter && meta.IsStatusConditionTrue(o.Status.Conditions, machineapi.ConditionWaiting))
	return changed(o, next)
}

// changed returns the change of a status; none if it is the same.
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
	case o.Approved() && o.Spec.Approval.Rule != "" && !decided: // without the list of machined
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

// describeHost converts an inventory, which is within its bounds.
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
