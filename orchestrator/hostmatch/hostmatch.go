// Package hostmatch evaluates CEL expressions over the inventory of a waiting machine. The
// expressions are from worker templates (docs/decisions/0107-claims.md) and from approval rules
// (docs/decisions/0120-approval-rules.md). The cost of an evaluation is bounded (package
// diskselector).
package hostmatch

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Facts are the variables of an expression about an inventory. Sizes are in bytes.
func Facts(i machineapi.HostInventory) map[string]any {
	const mib = 1 << 20
	disks, nics := []any{}, []any{}
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
		"host.cpus": int64(i.CPUs), "host.memory": i.MemoryMiB * mib, "host.disks": disks, "host.nics": nics,
	}
}

// Compile compiles an expression over an inventory. The labels and the address of an OrlopHost are
// not among its variables, because no operator has signed them and no machine has sent them.
func Compile(expression string) (*diskselector.Program, error) {
	return diskselector.Compile(expression, "a host", Facts(machineapi.HostInventory{}))
}

// Answer reads a HostMatchRequest and writes the HostMatchResult, both as JSON.
func Answer(from io.Reader, to io.Writer) error {
	q, err := nodespec.ReadRequest[nodespec.HostMatchRequest](from)
	if err != nil {
		return err
	}
	var a nodespec.HostMatchResult
	if a.Matches, err = match(q); err != nil {
		a.Problem = err.Error()
	}
	return nodespec.WriteAnswer(to, a)
}

func match(q nodespec.HostMatchRequest) (bool, error) {
	// The JSON of inventory.Host has the same field names.
	var i machineapi.HostInventory
	if err := json.Unmarshal(q.Inventory, &i); err != nil {
		return false, fmt.Errorf("cannot be evaluated: the inventory cannot be parsed: %w", err)
	}
	program, err := Compile(q.Expression)
	if err != nil {
		return false, err
	}
	yes, err := program.Matches(Facts(i))
	if err != nil {
		return false, fmt.Errorf("cannot be evaluated: %w", err)
	}
	return yes, nil
}
