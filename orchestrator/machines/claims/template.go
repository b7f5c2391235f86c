package claims

import (
	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/pkg/claim"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// template is a parsed OrlopMachineTemplate.
type template struct {
	signed  claim.Signed
	prefix  string
	match   *diskselector.Program // nil: every machine matches
	problem string                // the reason why the template cannot be used
}

// newTemplate parses a template. The signature is for the machines: the controllers do not know the
// CAs of operators.
func newTemplate(o *machineapi.OrlopMachineTemplate) *template {
	spec := o.Spec.Template.Spec
	t := &template{signed: claim.Signed{Documents: []byte(spec.Documents), Signature: []byte(spec.Signature)}}
	parsed, err := t.signed.Parse()
	if err == nil && spec.Match != "" {
		t.match, err = diskselector.Compile(spec.Match, "a host", facts(&machineapi.OrlopHost{}))
	}
	if err != nil {
		t.problem = sanitizedReason("OrlopMachineTemplate " + o.Name + ": " + err.Error())
	}
	t.prefix = parsed.Prefix
	return t
}

// matches reports whether a host matches. A host for which the expression has no value, for example
// because it lacks a label, does not match.
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

// facts are the variables of an expression about a host. Sizes are in bytes.
func facts(h *machineapi.OrlopHost) map[string]any {
	const mib = 1 << 20
	i := h.Status.Inventory
	labels, disks, nics := map[string]any{}, []any{}, []any{}
	for key, value := range h.Labels {
		labels[key] = value
	}
	for _, d := range i.Disks {
		disks = append(disks, map[string]any{"name": d.Name, "size": d.SizeMiB * mib, "model": d.Model, "serial": d.Serial, "rotational": d.Rotational})
	}
	for _, n := range i.NICs {
		neighbors := []any{}
		for _, seen := range n.Neighbors {
			neighbors = append(neighbors, map[string]any{"system": seen.System, "port": seen.Port})
		}
		nics = append(nics, map[string]any{
			"name": n.Name, "mac": n.MAC, "driver": n.Driver, "speedMbps": int64(n.SpeedMbps), "carrier": n.Carrier, "neighbors": neighbors,
		})
	}
	return map[string]any{
		"host.serial": i.Serial, "host.uuid": i.UUID, "host.vendor": i.Vendor, "host.product": i.Product, "host.release": i.Release, "host.cpuModel": i.CPUModel,
		"host.cpus": int64(i.CPUs), "host.memory": i.MemoryMiB * mib, "host.address": h.Status.Address,
		"host.labels": labels, "host.disks": disks, "host.nics": nics,
	}
}
