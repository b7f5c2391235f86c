package claims

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/disruption/ondemand"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// These are the reasons of the conditions of MachineSets and MachineDeployments.
const (
	reasonSatisfied = "Satisfied" // the set has its machines
	reasonNoHost    = "NoMatchingHost"
	reasonPowering  = "PoweringOn" // enough hosts are switched on, and are not claimed yet
	reasonTemplate  = "TemplateUnusable"
	reasonJoining   = "MachinesJoining"
	reasonLeaving   = "MachinesLeaving"
	reasonUnready   = "MachinesNotReady"
	reasonForeign   = "MachineSetOfAnotherOwner"
	reasonPaused    = "Paused"
)

// deployment creates the MachineSet of a MachineDeployment, copies changes of replicas and template
// to the set, and updates the status of the MachineDeployment. A new template applies only to
// machines that are claimed later.
func (p *plan) deployment(d *clusterv1.MachineDeployment) {
	if d.DeletionTimestamp != nil || d.Spec.ClusterName != p.Cluster.Name || p.isPaused(d) {
		return
	}
	i := slices.IndexFunc(p.Sets, func(s *clusterv1.MachineSet) bool { return s.Name == d.Name })
	switch {
	case i < 0:
		set := &clusterv1.MachineSet{ObjectMeta: metav1.ObjectMeta{
			Name: d.Name, Namespace: machineapi.Namespace, Labels: map[string]string{clusterv1.ClusterNameLabel: p.Cluster.Name, clusterv1.MachineDeploymentNameLabel: d.Name},
			OwnerReferences: controlledBy("MachineDeployment", d),
		}, Spec: setSpec(d)}
		p.change(Create, set)
		p.deploymentStatus(d, nil)
	case !metav1.IsControlledBy(p.Sets[i], d):
		p.deploymentStatus(d, nil)
	default:
		set, want := p.Sets[i], setSpec(d)
		if !ptr.Deref(d.Spec.Paused, false) && set.DeletionTimestamp == nil && !equality.Semantic.DeepEqual(set.Spec, want) {
			next := set.DeepCopy()
			next.Spec = want
			p.change(Adjust, next)
		}
		p.deploymentStatus(d, set)
	}
}

// controlledBy returns the owner reference to an object of Cluster API that controls another
// object.
func controlledBy(kind string, o metav1.Object) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: o.GetName(), UID: o.GetUID(), Controller: new(true)}}
}

// setSpec returns the wanted specification of the MachineSet of a MachineDeployment.
func setSpec(d *clusterv1.MachineDeployment) clusterv1.MachineSetSpec {
	spec := clusterv1.MachineSetSpec{ClusterName: d.Spec.ClusterName, Replicas: new(replicas(d.Spec.Replicas)), Selector: *d.Spec.Selector.DeepCopy(), Template: *d.Spec.Template.DeepCopy()}
	labels := map[string]string{}
	maps.Copy(labels, spec.Template.Labels)
	labels[clusterv1.MachineDeploymentNameLabel] = d.Name
	spec.Template.Labels = labels
	return spec
}

// replicas returns the wanted number of machines: 1 if n is nil, as Cluster API defines it, and
// never less than 0.
func replicas(n *int32) int32 {
	return max(0, ptr.Deref(n, 1))
}

// members are the machines and hosts of a set.
type members struct {
	all     []*clusterv1.Machine // Machines that are not deleted
	leaving int                  // number of Machines that are being deleted
	pending []*machineapi.OrlopHost
}

// membersOf returns the members of a set. pending are the hosts that the set has claimed and that
// have no Machine yet.
func (p *plan) membersOf(set *clusterv1.MachineSet) (m members) {
	for _, o := range sorted(p.Machines) {
		switch {
		case !metav1.IsControlledBy(o, set):
		case o.DeletionTimestamp != nil:
			m.leaving++
		default:
			m.all = append(m.all, o)
		}
	}
	for _, h := range sorted(p.Hosts) {
		if c := h.Spec.Claim; c != nil && c.MachineSet == set.Name && p.machines[c.Machine] == nil {
			m.pending = append(m.pending, h)
		}
	}
	return m
}

// set adds the changes that give a set its wanted number of machines: it claims or releases hosts,
// creates the Machines of claimed hosts, and deletes Machines. It also updates the status of the
// set.
func (p *plan) set(set *clusterv1.MachineSet) {
	if set.DeletionTimestamp != nil || set.Spec.ClusterName != p.Cluster.Name {
		return // the garbage collector deletes the Machines of a deleted set
	}
	m, want := p.membersOf(set), int(replicas(set.Spec.Replicas))
	have := len(m.all) + len(m.pending)
	if p.isPaused(set) {
		p.setStatus(set, m, metav1.Condition{Type: clusterv1.MachineSetScalingUpCondition, Status: metav1.ConditionFalse, Reason: reasonPaused})
		return
	}
	scaling := metav1.Condition{Type: clusterv1.MachineSetScalingUpCondition, Status: metav1.ConditionFalse, Reason: reasonSatisfied}
	m.pending = slices.DeleteFunc(m.pending, func(h *machineapi.OrlopHost) bool {
		if have <= want && waits(h) {
			return false
		}
		p.release(h)
		have--
		return true
	})
	for _, h := range m.pending {
		p.create(set, h)
	}
	removable := p.removable(m.all)
	for _, o := range removable[:min(len(removable), max(0, have-want))] {
		p.change(Delete, o)
	}
	if have < want {
		scaling.Status, scaling.Reason, scaling.Message = p.claim(set, want-have)
	} else {
		p.dismissBut(set, 0)
	}
	p.setStatus(set, m, scaling)
}

// claim claims up to missing hosts for a set. It returns the status, reason and message of the
// condition ScalingUp.
func (p *plan) claim(set *clusterv1.MachineSet, missing int) (status metav1.ConditionStatus, reason, message string) {
	name := set.Spec.Template.Spec.InfrastructureRef.Name
	t := p.templates[name]
	if t == nil || set.Spec.Template.Spec.InfrastructureRef.Kind != "OrlopMachineTemplate" {
		return metav1.ConditionTrue, reasonTemplate, fmt.Sprintf("spec.template.spec.infrastructureRef: there is no OrlopMachineTemplate %s in namespace %s; create it", name, machineapi.Namespace)
	}
	if t.problem != "" {
		return metav1.ConditionTrue, reasonTemplate, t.problem
	}
	unapproved := 0
	for _, h := range sorted(p.Hosts) {
		if missing == 0 {
			break
		}
		machine := claim.Name(t.prefix, h.Spec.Fingerprint)
		if !t.takes(h) && h.Spec.Claim == nil && (h.Spec.Power == nil || waits(h)) && t.matches(h) {
			unapproved++
		}
		if !p.available(h) || !t.takes(h) || p.used(machine) || !t.matches(h) {
			continue
		}
		next := h.DeepCopy()
		next.Spec.Claim, next.Spec.Standby = &machineapi.HostClaim{MachineSet: set.Name, Template: name, Machine: machine, OnRemoval: string(t.onRemoval())}, nil
		p.taken[h.Name] = true
		p.change(Claim, next)
		missing--
	}
	p.dismissBut(set, missing)
	if missing == 0 {
		return metav1.ConditionTrue, reasonJoining, "hosts are claimed"
	}
	by := ""
	if t.ruleOnly {
		by = " by an OrlopApprovalRule, which the template demands"
	}
	reason = reasonNoHost
	message = fmt.Sprintf("%d more approved OrlopHosts that wait and match OrlopMachineTemplate %s are needed; %d that match are not approved%s", missing, name, unapproved, by)
	if coming := p.powerOn(set, t, missing); coming > 0 {
		message += fmt.Sprintf("; %d of them are switched on for this set, and can be claimed after they have reported and are approved", coming)
		if coming >= missing {
			reason = reasonPowering
		}
	}
	return metav1.ConditionTrue, reason, message
}

// powerOn orders that hosts that are off and match are switched on for a set. It returns how many
// hosts are on the way, including the hosts of former orders, and gives no order beyond `missing`
// hosts. A host that has reported is on the way until it is claimed. So while it waits for its
// approval, no other host is switched on in its place.
func (p *plan) powerOn(set *clusterv1.MachineSet, t *template, missing int) (coming int) {
	for _, h := range p.Hosts {
		o := hosts.Operation(h)
		if o.For == set.Name && h.Spec.Power != nil && h.Spec.Claim == nil && !p.taken[h.Name] && o.OnTheWay(p.Now) && t.matches(h) {
			coming++
		}
	}
	for _, h := range sorted(p.Hosts) {
		if coming >= missing {
			break
		}
		o := hosts.Operation(h)
		free := (o.Phase == standby.Off || o.Phase == standby.Surplus) && !isInUse(h)
		if !free || h.DeletionTimestamp != nil || h.Spec.Power == nil || h.Spec.Claim != nil || p.taken[h.Name] || !t.matches(h) {
			continue
		}
		next, order := h.DeepCopy(), standby.Operation{Phase: standby.SwitchOn, Since: p.Now, For: set.Name, Unconfirmed: o.Unconfirmed}
		if o.Phase == standby.Surplus && waits(h) { // it waits for an approval
			order.Phase = standby.Reported
		}
		next.Spec.Standby = hosts.Standby(order)
		p.taken[h.Name] = true
		p.change(PowerOn, next)
		coming++
	}
	return coming
}

// isInUse reports whether a member of the cluster can be the machine of a host.
func isInUse(h *machineapi.OrlopHost) bool {
	c := meta.FindStatusCondition(h.Status.Conditions, machineapi.ConditionWaiting)
	return c != nil && c.Reason == "InUse"
}

// isOrdered reports whether a host was switched on for a MachineSet, and is not claimed yet.
func isOrdered(h *machineapi.OrlopHost) bool {
	return h.DeletionTimestamp == nil && h.Spec.Power != nil && h.Spec.Claim == nil && hosts.Operation(h).For != ""
}

// dismissBut dismisses hosts that were switched on for a set, until only the needed number of them
// is left. It dismisses the hosts that are late first, then the hosts that are on the way, and the
// hosts that have reported last.
func (p *plan) dismissBut(set *clusterv1.MachineSet, needed int) {
	var ordered []*machineapi.OrlopHost
	for _, h := range sorted(p.Hosts) {
		if isOrdered(h) && !p.taken[h.Name] && hosts.Operation(h).For == set.Name {
			ordered = append(ordered, h)
		}
	}
	rank := func(h *machineapi.OrlopHost) int {
		switch o := hosts.Operation(h); {
		case o.Phase == standby.Reported:
			return 0
		case o.OnTheWay(p.Now):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(ordered, func(a, b *machineapi.OrlopHost) int { return cmp.Compare(rank(a), rank(b)) })
	for _, h := range ordered[min(needed, len(ordered)):] {
		p.dismiss(h)
	}
}

// dismiss marks a host that no set needs any more. It is switched off later (package standby).
func (p *plan) dismiss(h *machineapi.OrlopHost) {
	next := h.DeepCopy()
	next.Spec.Standby = hosts.Standby(standby.Operation{Phase: standby.Surplus, Since: p.Now, Unconfirmed: hosts.Operation(h).Unconfirmed})
	p.taken[h.Name] = true
	p.change(Dismiss, next)
}

// create creates the Machine of a claimed host. infrastructure creates the OrlopMachine in a later
// pass, because the Machine owns it.
func (p *plan) create(set *clusterv1.MachineSet, h *machineapi.OrlopHost) {
	c := h.Spec.Claim
	if p.own[c.Machine] != nil || slices.Contains(p.Nodes, c.Machine) {
		return // another machine has this name
	}
	o := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Machine, Namespace: machineapi.Namespace, Finalizers: []string{Finalizer}, Labels: map[string]string{}, Annotations: maps.Clone(set.Spec.Template.Annotations),
			OwnerReferences: controlledBy("MachineSet", set),
		},
		Spec: *set.Spec.Template.Spec.DeepCopy(),
	}
	maps.Copy(o.Labels, set.Spec.Template.Labels)
	delete(o.Labels, clusterv1.MachineControlPlaneLabel)
	o.Labels[clusterv1.ClusterNameLabel], o.Labels[clusterv1.MachineSetNameLabel] = p.Cluster.Name, set.Name
	o.Spec.ClusterName, o.Spec.ProviderID = p.Cluster.Name, machineapi.ProviderID(p.Cluster.Name, c.Machine)
	// The machine gets its configuration from machined, so there is no Secret with bootstrap data.
	o.Spec.Bootstrap = clusterv1.Bootstrap{DataSecretName: new(string)}
	o.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: machineapi.GroupVersion.Group, Kind: "OrlopMachine", Name: c.Machine}
	p.change(Create, o)
}

// infrastructure creates the OrlopMachine of a claimed host after its Machine. From then on, the
// list for machined contains the claim.
func (p *plan) infrastructure(h *machineapi.OrlopHost) {
	c := h.Spec.Claim
	if c == nil {
		return
	}
	m := p.machines[c.Machine]
	if m == nil || m.DeletionTimestamp != nil || p.own[c.Machine] != nil || !slices.Contains(m.Finalizers, Finalizer) || !h.Approved() {
		return
	}
	p.change(Create, &machineapi.OrlopMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Machine, Namespace: machineapi.Namespace, Labels: maps.Clone(m.Labels),
			OwnerReferences: controlledBy("Machine", m),
		},
		Spec: machineapi.OrlopMachineSpec{
			ProviderID: m.Spec.ProviderID, Role: machineapi.RoleWorker, Claim: &machineapi.MachineClaim{Fingerprint: h.Spec.Fingerprint, Template: c.Template, Rule: h.Spec.Approval.Rule},
			Power: h.Spec.Power.DeepCopy(),
		},
	})
}

// IsRemovable reports whether a set can delete a Machine. own is its OrlopMachine; nil if it does
// not exist yet.
func IsRemovable(m *clusterv1.Machine, own *machineapi.OrlopMachine) bool {
	return slices.Contains(m.Finalizers, Finalizer) && (own == nil || claimed(m, own) != nil)
}

// removable returns the Machines that a set can delete, in this order: first Machines that an
// operator wants to delete (DeleteMachineAnnotation of Cluster API), then those that have not
// joined, then those that are not ready, then all others. Within each group, the newest Machine is
// first.
func (p *plan) removable(all []*clusterv1.Machine) []*clusterv1.Machine {
	all = slices.DeleteFunc(slices.Clone(all), func(m *clusterv1.Machine) bool { return !IsRemovable(m, p.own[m.Name]) })
	rank := func(m *clusterv1.Machine) int {
		switch _, wanted := m.Annotations[clusterv1.DeleteMachineAnnotation]; {
		case wanted:
			return 0
		case !slices.Contains(p.Nodes, m.Name):
			return 1
		case !meta.IsStatusConditionTrue(m.Status.Conditions, clusterv1.MachineReadyCondition):
			return 2
		}
		return 3
	}
	slices.SortStableFunc(all, func(a, b *clusterv1.Machine) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// setStatus adds a change that writes the status of a MachineSet if it differs.
func (p *plan) setStatus(set *clusterv1.MachineSet, m members, scaling metav1.Condition) {
	next := set.DeepCopy()
	st := &next.Status
	count := func(condition string) *int32 {
		var n int32
		for _, o := range m.all {
			if meta.IsStatusConditionTrue(o.Status.Conditions, condition) {
				n++
			}
		}
		return &n
	}
	st.ObservedGeneration, st.Selector = set.Generation, metav1.FormatLabelSelector(&set.Spec.Selector)
	st.Replicas = new(int32(len(m.all)))
	st.ReadyReplicas, st.AvailableReplicas, st.UpToDateReplicas = count(clusterv1.MachineReadyCondition), count(clusterv1.MachineAvailableCondition), count(clusterv1.MachineUpToDateCondition)
	down := metav1.Condition{Type: clusterv1.MachineSetScalingDownCondition, Status: metav1.ConditionFalse, Reason: reasonSatisfied}
	if m.leaving > 0 {
		down.Status, down.Reason, down.Message = metav1.ConditionTrue, reasonLeaving, fmt.Sprintf("%d machines leave the cluster", m.leaving)
	}
	ready := metav1.Condition{Type: clusterv1.MachineSetMachinesReadyCondition, Status: metav1.ConditionTrue, Reason: reasonSatisfied}
	if *st.ReadyReplicas < *st.Replicas {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, reasonUnready, fmt.Sprintf("%d of %d machines are ready", *st.ReadyReplicas, *st.Replicas)
	}
	p.setConditions(&st.Conditions, set.Generation, scaling, down, ready)
	if !equality.Semantic.DeepEqual(set.Status, next.Status) {
		p.change(Status, next)
	}
}

// deploymentStatus adds a change that writes the status of a MachineDeployment, from the status of
// its set, if it differs. set is nil if the MachineDeployment controls no set.
func (p *plan) deploymentStatus(d *clusterv1.MachineDeployment, set *clusterv1.MachineSet) {
	next := d.DeepCopy()
	st := &next.Status
	st.ObservedGeneration, st.Selector = d.Generation, metav1.FormatLabelSelector(&d.Spec.Selector)
	available := metav1.Condition{Type: clusterv1.MachineDeploymentAvailableCondition, Status: metav1.ConditionFalse, Reason: reasonJoining}
	scaling := metav1.Condition{Type: clusterv1.MachineDeploymentScalingUpCondition, Status: metav1.ConditionTrue, Reason: reasonJoining}
	if set == nil {
		if slices.ContainsFunc(p.Sets, func(s *clusterv1.MachineSet) bool { return s.Name == d.Name }) {
			scaling.Reason, scaling.Message = reasonForeign, "a MachineSet of this name has another owner; delete it, or use another name"
		}
		p.setConditions(&st.Conditions, d.Generation, available, scaling)
	} else {
		st.Replicas, st.ReadyReplicas, st.AvailableReplicas, st.UpToDateReplicas = set.Status.Replicas, set.Status.ReadyReplicas, set.Status.AvailableReplicas, set.Status.UpToDateReplicas
		want, have := replicas(d.Spec.Replicas), ptr.Deref(st.AvailableReplicas, 0)
		phase := clusterv1.MachineDeploymentPhaseRunning
		switch {
		case ptr.Deref(st.Replicas, 0) > want:
			phase = clusterv1.MachineDeploymentPhaseScalingDown
		case have < want:
			phase = clusterv1.MachineDeploymentPhaseScalingUp
		}
		st.Phase = string(phase)
		if have >= want {
			available.Status, available.Reason = metav1.ConditionTrue, reasonSatisfied
		} else {
			available.Message = fmt.Sprintf("%d of %d machines are available", have, want)
		}
		conditions := []metav1.Condition{available}
		for _, kind := range []string{clusterv1.MachineDeploymentScalingUpCondition, clusterv1.MachineDeploymentScalingDownCondition, clusterv1.MachineDeploymentMachinesReadyCondition} {
			if c := meta.FindStatusCondition(set.Status.Conditions, kind); c != nil {
				conditions = append(conditions, metav1.Condition{Type: kind, Status: c.Status, Reason: c.Reason, Message: c.Message})
			}
		}
		p.setConditions(&st.Conditions, d.Generation, conditions...)
	}
	p.demandCondition(d, &st.Conditions)
	if !equality.Semantic.DeepEqual(d.Status, next.Status) {
		p.change(Status, next)
	}
}

// demandCondition sets the condition of power on demand, or removes it if the controllers do not
// scale the MachineDeployment. It keeps the condition until the first decision.
func (p *plan) demandCondition(d *clusterv1.MachineDeployment, all *[]metav1.Condition) {
	v, decided := p.Demand[d.Name]
	switch {
	case !OnDemand(d):
		meta.RemoveStatusCondition(all, machineapi.ConditionOnDemand)
	case decided:
		status := metav1.ConditionTrue
		if slices.Contains([]ondemand.State{ondemand.Invalid, ondemand.Full, ondemand.Unknown, ondemand.Held, ondemand.Futile}, v.State) {
			status = metav1.ConditionFalse
		}
		p.setConditions(all, d.Generation, metav1.Condition{Type: machineapi.ConditionOnDemand, Status: status, Reason: string(v.State), Message: v.Message})
	}
}

// OnDemand reports whether the controllers scale a MachineDeployment by themselves: an operator has
// chosen it by an annotation. The annotations of cluster-autoscaler are no sufficient reason,
// because cluster-autoscaler may run in the cluster.
func OnDemand(d *clusterv1.MachineDeployment) bool {
	return d.Annotations[machineapi.OnDemandAnnotation] == "true"
}

// setConditions adds or replaces conditions. generation is the observed generation of their object.
func (p *plan) setConditions(all *[]metav1.Condition, generation int64, wanted ...metav1.Condition) {
	for _, c := range wanted {
		c.ObservedGeneration, c.LastTransitionTime, c.Message = generation, metav1.NewTime(p.Now.Truncate(time.Second)), machineapi.ConditionMessage(c.Message)
		meta.SetStatusCondition(all, c)
	}
}
