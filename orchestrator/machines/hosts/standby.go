package hosts

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineprovider"
)

// Call is a request to the power switch of a host.
type Call struct {
	Host   *machineapi.OrlopHost // as Plan has seen it
	Action fence.Action
}

// Operation returns the stored state of the power of a host (package standby).
func Operation(h *machineapi.OrlopHost) standby.Operation {
	s := h.Spec.Standby
	if s == nil {
		return standby.Operation{}
	}
	return standby.Operation{Phase: standby.Phase(s.Phase), Since: s.Since.Time, For: s.MachineSet, Unconfirmed: s.Erasure == machineapi.ErasureNotConfirmed}
}

// Standby returns the stored form of the state of the power of a host; nil if there is none.
func Standby(o standby.Operation) *machineapi.HostStandby {
	if o.Phase == "" {
		return nil
	}
	s := &machineapi.HostStandby{Phase: string(o.Phase), Since: metav1.NewTime(o.Since.Truncate(time.Second)), MachineSet: o.For}
	if o.Unconfirmed {
		s.Erasure = machineapi.ErasureNotConfirmed
	}
	return s
}

// NeedPower returns the hosts whose power switch Plan needs in Snapshot.Power. It ignores
// Snapshot.Boards, which Plan needs if there is such a host.
func NeedPower(s Snapshot) (all []*machineapi.OrlopHost) {
	s.Boards = map[string]string{}
	p := newPlan(s)
	for _, o := range s.Objects {
		if h, operated := p.facts(o); operated && h.Reads() {
			all = append(all, o)
		}
	}
	return all
}

// members are the members of the cluster, by what identifies a machine. The values are texts for
// operators.
type members struct{ uuids, secrets, boards map[string]string }

// membersOf returns the members of the cluster.
func membersOf(s Snapshot) members {
	m := members{map[string]string{}, map[string]string{}, map[string]string{}}
	for _, n := range s.Nodes {
		if uuid := n.Status.NodeInfo.SystemUUID; uuid != "" {
			m.uuids[machineprovider.CanonicalUUID(uuid)] = "Node " + n.Name + " states the same UUID"
		}
	}
	for _, own := range s.Own {
		if own.Spec.Power == nil {
			continue
		}
		text, secret := "OrlopMachine "+own.Name+" has the same power switch", own.Spec.Power.Secret
		m.secrets[secret] = text
		if board, known := s.Boards[secret]; known {
			m.boards[board] = text
		}
	}
	return m
}

// StatesUUID reports whether a Node states the UUID of a host.
func StatesUUID(n *corev1.Node, o *machineapi.OrlopHost) bool {
	a, b := n.Status.NodeInfo.SystemUUID, o.Status.Inventory.UUID
	return a != "" && b != "" && machineprovider.SameUUID(a, b)
}

// inUse returns the reason why a member of the cluster, or a claimed host, can be the machine of a
// host; empty if none can be.
func (p plan) inUse(o *machineapi.OrlopHost) string {
	if slices.Contains(p.Listing.Members, o.Spec.Fingerprint) {
		return "the machine is a member of the cluster"
	}
	uuid := machineprovider.CanonicalUUID(o.Status.Inventory.UUID)
	for _, other := range p.stated[uuid] {
		if other.Name != o.Name && other.Spec.Claim != nil {
			return "OrlopHost " + other.Name + ", which is claimed, states the same UUID"
		}
	}
	in, secret := "", o.Spec.Power.Secret
	if board, known := p.Boards[secret]; known {
		in = p.members.boards[board]
	}
	return cmp.Or(p.members.uuids[uuid], p.members.secrets[secret], in)
}

// waits reports whether a machine waits for a configuration: machined lists it, or it was listed a
// short time ago.
func (p plan) waits(o *machineapi.OrlopHost) bool {
	for _, e := range p.Listing.Waiting {
		if e.Key == o.Spec.Fingerprint {
			return true
		}
	}
	return p.quiet(o) < silentAfter && meta.IsStatusConditionTrue(o.Status.Conditions, machineapi.ConditionWaiting)
}

// quiet returns the time since the last message of a machine that is stored in its object.
func (p plan) quiet(o *machineapi.OrlopHost) time.Duration { return p.Now.Sub(seen(o)) }

// seen returns the time of the last message of a machine that is stored in its object.
func seen(o *machineapi.OrlopHost) time.Time {
	if at := o.Status.LastSeen; at != nil && at.After(o.CreationTimestamp.Time) {
		return at.Time
	}
	return o.CreationTimestamp.Time
}

// facts returns the facts about a host with a power switch. operated is false for other hosts, and
// for all hosts while claims are disabled.
func (p plan) facts(o *machineapi.OrlopHost) (h standby.Host, operated bool) {
	if !p.Operate || o.Spec.Power == nil || o.DeletionTimestamp != nil {
		return h, false
	}
	h = standby.Host{Operation: Operation(o), Claimed: o.Spec.Claim != nil, Waiting: p.waits(o)}
	h.InUse, h.Seen = p.inUse(o), seen(o)
	for _, other := range p.others(o) {
		active := p.waits(other) || other.Spec.Claim != nil
		switch {
		case p.isTwin(other):
			h.Twins++
			h.Twin = other.CreationTimestamp.Time
		case other.Spec.Power != nil && other.Spec.Power.Secret == o.Spec.Power.Secret && active:
			h.Succeeded = true
		default:
			h.Others++
		}
	}
	if h.Twins > 1 {
		h.Twin = time.Time{}
	}
	if h.Reads() && p.Boards == nil {
		h.InUse = "the Secrets of the power switches were not read"
	}
	var read bool
	if h.Switch, read = p.Power[o.Name]; !read {
		h.Access = "the power switch was not read yet"
	}
	return h, true
}

// others returns the other hosts that state the same UUID as a host.
func (p plan) others(o *machineapi.OrlopHost) (all []*machineapi.OrlopHost) {
	for _, other := range p.stated[machineprovider.CanonicalUUID(o.Status.Inventory.UUID)] {
		if other.Name != o.Name {
			all = append(all, other)
		}
	}
	return all
}

// isTwin reports whether another host with the same UUID can be the same machine with another key:
// it waits, and has no power switch yet.
func (p plan) isTwin(other *machineapi.OrlopHost) bool {
	return other.Spec.Power == nil && other.Spec.Claim == nil && p.waits(other)
}

// byUUID returns the hosts by the UUIDs that they state, in one form. A host without a UUID is
// omitted.
func byUUID(objects []*machineapi.OrlopHost) map[string][]*machineapi.OrlopHost {
	all := map[string][]*machineapi.OrlopHost{}
	for _, o := range objects {
		if uuid := machineprovider.CanonicalUUID(o.Status.Inventory.UUID); uuid != "" && o.DeletionTimestamp == nil {
			all[uuid] = append(all[uuid], o)
		}
	}
	return all
}

// standbys decides about the power of all hosts with a power switch. It stores the verdicts in p,
// and adds the changes and calls. Without the list of machined nothing changes, because the waiting
// machines are unknown.
func (p *plan) standbys() {
	p.power = map[string]standby.Verdict{}
	for _, o := range p.Objects {
		facts, operated := p.facts(o)
		if !operated {
			continue
		}
		v := standby.Decide(p.Now, facts)
		p.power[o.Name] = v
		switch {
		case p.Listing.Members == nil:
			continue
		case v.Obsolete:
			p.changes = append(p.changes, Change{Verb: Delete, Object: o})
			continue
		case v.Operation != facts.Operation:
			next := o.DeepCopy()
			next.Spec.Standby = Standby(v.Operation)
			p.changes = append(p.changes, Change{Verb: Power, Object: next})
		case v.Action != fence.Nothing:
			p.calls = append(p.calls, Call{o, v.Action})
		}
		if v.Equip {
			p.equip(o)
		}
	}
}

// equip gives the power switch of a host to its twin, which is the same machine with another key.
// The twin also gets the labels of the host, because templates match them, and the order of the
// MachineSet for which the machine was switched on.
func (p *plan) equip(o *machineapi.OrlopHost) {
	others := p.others(o)
	i := slices.IndexFunc(others, func(other *machineapi.OrlopHost) bool { return p.isTwin(other) })
	if i < 0 {
		return
	}
	next := others[i].DeepCopy()
	for key, value := range o.Labels {
		if _, there := next.Labels[key]; !there {
			metav1.SetMetaDataLabel(&next.ObjectMeta, key, value)
		}
	}
	next.Spec.Power = o.Spec.Power.DeepCopy()
	if set := Operation(o).For; set != "" && next.Spec.Claim == nil {
		next.Spec.Standby = Standby(standby.Operation{Phase: standby.Reported, Since: p.Now, For: set})
	}
	p.changes = append(p.changes, Change{Verb: Equip, Object: next})
}

// stays reports whether the object of a machine stays although the machine has joined the cluster:
// a MachineSet has claimed it, and its power switch is needed when it is returned.
func stays(o *machineapi.OrlopHost) bool {
	phase := Operation(o).Phase
	return o.Spec.Power != nil && (o.Spec.Claim != nil || phase != "" && phase != standby.Reported && phase != standby.Surplus)
}
