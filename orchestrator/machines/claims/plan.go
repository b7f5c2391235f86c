package claims

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption/ondemand"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

const (
	// Finalizer is the finalizer of a claimed Machine.
	Finalizer = "orlop.dev/claimed"
	// settle is the time from the deletion of a Machine after which its machine cannot get a ticket
	// any more. By then, no machined uses a list of claims from before the deletion.
	settle = 2 * time.Minute
)

// Snapshot is the input of Plan.
type Snapshot struct {
	Now         time.Time
	Cluster     *clusterv1.Cluster
	Deployments []*clusterv1.MachineDeployment
	Sets        []*clusterv1.MachineSet
	Templates   []*machineapi.OrlopMachineTemplate
	Rules       []*machineapi.OrlopApprovalRule
	Hosts       []*machineapi.OrlopHost
	Machines    []*clusterv1.Machine // Machines of this cluster
	Own         []*machineapi.OrlopMachine
	Nodes       []string          // names of the Nodes
	Listing     inventory.Listing // the list of machined
	// Demand has the decisions of power on demand, by the names of the MachineDeployments.
	Demand map[string]ondemand.Verdict
}

// Verb is the kind of a change.
type Verb string

// These are the verbs of a change.
const (
	Create   Verb = "create"           // create the object
	Status   Verb = "write status"     // write the status of the object
	Adjust   Verb = "adjust"           // write spec.replicas and spec.template of a MachineSet
	Claim    Verb = "write claim"      // write spec.claim and spec.standby of an OrlopHost
	Return   Verb = "return"           // like Claim, and remove spec.approval
	PowerOn  Verb = "order power-on"   // write spec.standby of an OrlopHost
	Dismiss  Verb = "withdraw order"   // write spec.standby of an OrlopHost
	Delete   Verb = "delete"           // a Machine
	Finalize Verb = "remove finalizer" // write metadata.finalizers of a Machine
)

// Change is a change of an object. Object has the new content and the resource version that Plan
// has seen, so a write fails if the object has changed since.
type Change struct {
	Verb   Verb
	Object metav1.Object
}

// String returns the verb and the name of the object.
func (c Change) String() string {
	return string(c.Verb) + " " + reflect.TypeOf(c.Object).Elem().Name() + " " + c.Object.GetName()
}

// Result is the output of Plan.
type Result struct {
	Changes []Change
	// List is the list of claims and removals for machined.
	List claim.List
	// Decides reports whether a change claims, releases, returns, switches on or dismisses a host,
	// or deletes a Machine. The snapshot of such a plan must not be stale, because a set could
	// otherwise claim or delete too many machines.
	Decides bool
}

// plan is the state of a call of Plan.
type plan struct {
	Snapshot
	Result
	own       map[string]*machineapi.OrlopMachine
	machines  map[string]*clusterv1.Machine
	templates map[string]*template
	taken     map[string]bool // names of the hosts that this plan claims or switches on
}

// Plan returns the changes to make and the list for machined. After all changes are made, Plan
// returns further changes only when machines have joined or left.
func Plan(s Snapshot) Result {
	p := &plan{
		Snapshot: s, own: map[string]*machineapi.OrlopMachine{}, machines: map[string]*clusterv1.Machine{},
		templates: map[string]*template{}, taken: map[string]bool{},
	}
	p.List = claim.List{Written: s.Now, Templates: map[string]claim.Signed{}, Rules: map[string]claim.SignedRule{}, Claims: []claim.Claim{}, Removals: []claim.Member{}}
	for _, o := range s.Own {
		p.own[o.Name] = o
	}
	for _, m := range s.Machines {
		p.machines[m.Name] = m
	}
	for _, t := range s.Templates {
		p.templates[t.Name] = newTemplate(t)
	}
	for _, d := range sorted(s.Deployments) {
		p.deployment(d)
	}
	for _, set := range sorted(s.Sets) {
		p.set(set)
	}
	for _, h := range sorted(s.Hosts) {
		p.infrastructure(h)
		p.abandoned(h)
	}
	for _, m := range sorted(s.Machines) {
		p.machine(m)
	}
	return p.Result
}

// sorted returns the objects sorted by name.
func sorted[T metav1.Object](all []T) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

func (p *plan) change(verb Verb, o metav1.Object) {
	p.Changes = append(p.Changes, Change{verb, o})
	p.Decides = p.Decides || verb == Claim || verb == Return || verb == PowerOn || verb == Dismiss || verb == Delete
}

// claimed returns the claim of a Machine, which is in its OrlopMachine. It returns nil if the
// machine is no claimed worker. This package and machined never remove such a machine from the
// cluster. own is the OrlopMachine; nil if there is none.
func claimed(m *clusterv1.Machine, own *machineapi.OrlopMachine) *machineapi.MachineClaim {
	_, controlPlane := m.Labels[clusterv1.MachineControlPlaneLabel]
	if own == nil || own.Spec.Role != machineapi.RoleWorker || controlPlane {
		return nil
	}
	return own.Spec.Claim
}

// machine adds a claimed machine to the list for machined: as a claim until it joins, and as a
// removal after the deletion of its Machine. It removes the finalizer of the Machine when the
// machine has left.
func (p *plan) machine(m *clusterv1.Machine) {
	c := claimed(m, p.own[m.Name])
	if !slices.Contains(m.Finalizers, Finalizer) {
		return
	}
	leaves := m.DeletionTimestamp != nil
	switch {
	case c == nil:
		// The OrlopMachine does not exist yet, or an operator has deleted it. In the second case,
		// package machines creates an OrlopMachine without a claim.
		if leaves && p.Now.Sub(m.DeletionTimestamp.Time) >= settle {
			p.finalize(m)
		}
	case leaves && p.gone(m):
		if h := p.hostOf(m); h != nil {
			p.giveBack(h, m)
			return // the Machine is finalized in a later pass
		}
		p.finalize(m)
	case leaves:
		if len(p.List.Removals) < claim.MaxClaims {
			p.List.Removals = append(p.List.Removals, claim.Member{Name: m.Name, Key: c.Fingerprint})
		}
	case !slices.Contains(p.Listing.Members, c.Fingerprint):
		p.admit(m.Name, c)
	}
}

// gone reports whether the machine of a deleted Machine is no member of the cluster and cannot join
// any more. Without the list of machined it returns false.
func (p *plan) gone(m *clusterv1.Machine) bool {
	return p.Listing.Members != nil && !slices.Contains(p.Listing.Names, m.Name) && p.Now.Sub(m.DeletionTimestamp.Time) >= settle
}

// hostOf returns the host with a power switch that is claimed for a Machine; nil if there is none.
func (p *plan) hostOf(m *clusterv1.Machine) *machineapi.OrlopHost {
	for _, h := range p.Hosts {
		if c := h.Spec.Claim; c != nil && c.Machine == m.Name && h.Spec.Power != nil && h.DeletionTimestamp == nil {
			return h
		}
	}
	return nil
}

// giveBack returns a host with a power switch to the inventory after its machine has left the
// cluster. If its template says so, the machine erases itself and is switched off (package
// standby). Otherwise it keeps its data, and its power does not change. The approval ends, too,
// because it is for the key of the machine, which has left the cluster. A machine that still waits
// has never got its configuration, and stays as it is.
func (p *plan) giveBack(h *machineapi.OrlopHost, m *clusterv1.Machine) {
	if waits(h) {
		p.release(h)
		return
	}
	o := standby.Operation{Phase: standby.Unerased, Since: p.Now}
	if h.Spec.Claim.OnRemoval == string(config.RemovalWipe) {
		o.Phase, o.Unconfirmed = standby.SwitchOff, lost(m)
	}
	h = h.DeepCopy()
	h.Spec.Claim, h.Spec.Approval = nil, nil
	h.Spec.Standby = hosts.Standby(o)
	p.change(Return, h)
}

// lost reports whether the machine of a deleted Machine was not ready when the Machine was deleted.
// Such a machine may be off, and may not know of its removal.
func lost(m *clusterv1.Machine) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineReadyCondition)
	return c == nil || c.Status != metav1.ConditionTrue && !c.LastTransitionTime.After(m.DeletionTimestamp.Time)
}

func (p *plan) finalize(m *clusterv1.Machine) {
	m = m.DeepCopy()
	m.Finalizers = slices.DeleteFunc(m.Finalizers, func(f string) bool { return f == Finalizer })
	p.change(Finalize, m)
}

// admit adds a claim to the list for machined, with its template and its rule. If the template is
// unusable or the rule is missing, the claim is not listed and waits.
func (p *plan) admit(name string, c *machineapi.MachineClaim) {
	t := p.templates[c.Template]
	_, listed := p.List.Templates[c.Template]
	if t == nil || t.problem != "" || len(p.List.Claims) >= claim.MaxClaims || !listed && len(p.List.Templates) >= claim.MaxTemplates {
		return
	}
	ruleName := p.ruleOf(c)
	if ruleName != "" && !p.listRule(ruleName) {
		return
	}
	p.List.Templates[c.Template] = t.signed
	p.List.Claims = append(p.List.Claims, claim.Claim{Member: claim.Member{Name: name, Key: c.Fingerprint}, Template: c.Template, Rule: ruleName})
}

// ruleOf returns the name of the rule that approves a claimed machine, or "" if an operator has
// approved it. It uses the approval in the OrlopHost if there is one, because an operator may have
// approved the fingerprint after the claim.
func (p *plan) ruleOf(c *machineapi.MachineClaim) string {
	for _, h := range p.Hosts {
		if h.Name == machineapi.HostName(c.Fingerprint) && h.Approved() {
			return h.Spec.Approval.Rule
		}
	}
	return c.Rule
}

// listRule adds a rule to the list for machined if it is missing there. It returns whether the list
// contains the rule.
func (p *plan) listRule(name string) bool {
	if _, listed := p.List.Rules[name]; listed {
		return true
	}
	i := slices.IndexFunc(p.Rules, func(r *machineapi.OrlopApprovalRule) bool { return r.Name == name })
	if i < 0 || len(p.List.Rules) >= claim.MaxRules {
		return false
	}
	p.List.Rules[name] = claim.SignedRule{Text: []byte(p.Rules[i].Spec.Rule), Signature: []byte(p.Rules[i].Spec.Signature)}
	return true
}

// abandoned releases a host if the MachineSet that has claimed it does not exist any more and there
// is no Machine. It dismisses a host that was switched on for such a set.
func (p *plan) abandoned(h *machineapi.OrlopHost) {
	exists := func(set string) bool {
		return slices.ContainsFunc(p.Sets, func(s *clusterv1.MachineSet) bool { return s.Name == set && s.DeletionTimestamp == nil })
	}
	switch c := h.Spec.Claim; {
	case c != nil && p.machines[c.Machine] == nil && !exists(c.MachineSet):
		p.release(h)
	case c == nil && isOrdered(h) && !exists(hosts.Operation(h).For):
		p.dismiss(h)
	}
}

// release removes the claim of a host without a Machine. machined has never got such a claim.
func (p *plan) release(h *machineapi.OrlopHost) {
	h = h.DeepCopy()
	h.Spec.Claim = nil
	p.change(Claim, h)
}

// available reports whether a set can claim a host.
func (p *plan) available(h *machineapi.OrlopHost) bool {
	return h.DeletionTimestamp == nil && h.Spec.Claim == nil && !p.taken[h.Name] && h.Approved() &&
		waits(h) && h.Name == machineapi.HostName(h.Spec.Fingerprint) && !slices.Contains(p.Listing.Members, h.Spec.Fingerprint)
}

// waits reports whether the machine of a host waits for a configuration.
func waits(h *machineapi.OrlopHost) bool {
	return meta.IsStatusConditionTrue(h.Status.Conditions, machineapi.ConditionWaiting)
}

// used reports whether a machine or a Node already has this name.
func (p *plan) used(name string) bool {
	return p.machines[name] != nil || p.own[name] != nil || slices.Contains(p.Nodes, name) || slices.Contains(p.Listing.Names, name)
}

// isPaused reports whether the object or the cluster is paused.
func (p *plan) isPaused(o metav1.Object) bool {
	_, annotated := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return annotated || ptr.Deref(p.Cluster.Spec.Paused, false)
}
