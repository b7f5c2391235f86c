package claims

import (
	"cmp"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/orchestrator/hostmatch"
	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// template is a parsed OrlopMachineTemplate.
type template struct {
	signed  claim.Signed
	prefix  string
	match   *diskselector.Program // nil: every machine matches
	problem string                // why the template cannot be used, or empty
	// ruleOnly means that the template accepts only machines that a rule approves.
	ruleOnly bool
}

// newTemplate parses a template. It does not verify the signature, because the controllers do not
// know the CAs of operators. The machines verify it.
func newTemplate(o *machineapi.OrlopMachineTemplate) *template {
	spec := o.Spec.Template.Spec
	t := &template{signed: claim.Signed{Documents: []byte(spec.Documents), Signature: []byte(spec.Signature)}}
	parsed, err := t.signed.Parse()
	if err == nil && spec.Match != "" {
		t.match, err = diskselector.Compile(spec.Match, "a host", facts(&machineapi.OrlopHost{}))
	}
	if err != nil {
		t.problem = machineapi.ConditionMessage("OrlopMachineTemplate " + o.Name + ": " + err.Error())
	}
	t.prefix, t.ruleOnly = parsed.Prefix, parsed.RuleOnly
	return t
}

// onRemoval returns what a machine with the configuration of the template does after its removal
// from the cluster; empty means that it keeps its data. A machine rejects documents that cannot be
// parsed, so their value does not matter.
func (t *template) onRemoval() config.OnRemoval {
	documents, err := config.Merge(t.signed.Documents, fmt.Appendf(nil, "kind: Machine\nmetadata: {name: %s}\n", t.prefix))
	if err != nil {
		return ""
	}
	if c, _ := config.Parse("template", documents); c != nil && c.Machine.Spec.Join != nil {
		return c.Machine.Spec.Join.OnRemoval
	}
	return ""
}

// matches reports whether a host matches the expression of the template. A host does not match if
// the expression cannot be evaluated, for example because a label is missing.
func (t *template) matches(h *machineapi.OrlopHost) bool {
	if t.problem != "" {
		return false
	}
	if t.match == nil {
		return true
	}
	yes, err := t.match.Matches(facts(h))
	return err == nil && yes
}

// takes reports whether the template accepts the approval of a host.
func (t *template) takes(h *machineapi.OrlopHost) bool {
	return h.Approved() && (!t.ruleOnly || h.Spec.Approval.Rule != "")
}

// facts returns the variables for an expression about a host. Sizes are in bytes.
func facts(h *machineapi.OrlopHost) map[string]any {
	labels := map[string]any{}
	for key, value := range h.Labels {
		labels[key] = value
	}
	all := hostmatch.Facts(h.Status.Inventory)
	all["host.labels"], all["host.address"] = labels, h.Status.Address
	return all
}

// Smallest returns the inventory of the smallest host that a MachineDeployment could get: the host
// waits or is off, and matches the template. The smallest host has the fewest processors, and then
// the least memory. Smallest returns nil if there is no such host.
func Smallest(d *clusterv1.MachineDeployment, templates []*machineapi.OrlopMachineTemplate, all []*machineapi.OrlopHost) *machineapi.HostInventory {
	i := slices.IndexFunc(templates, func(t *machineapi.OrlopMachineTemplate) bool {
		return t.Name == d.Spec.Template.Spec.InfrastructureRef.Name
	})
	if i < 0 {
		return nil
	}
	t := newTemplate(templates[i])
	var found *machineapi.HostInventory
	for _, h := range all {
		if phase := hosts.Operation(h).Phase; h.Spec.Claim != nil || !waits(h) && phase != standby.Off || !t.matches(h) {
			continue
		}
		next := &h.Status.Inventory
		if found == nil || cmp.Or(cmp.Compare(next.CPUs, found.CPUs), cmp.Compare(next.MemoryMiB, found.MemoryMiB)) < 0 {
			found = next
		}
	}
	return found
}
