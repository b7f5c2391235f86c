package rotation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/pkg/config"
)

// machineRole is the role of a machine, and the control plane in its configuration.
type machineRole struct {
	machine       string   // name of the machine
	controlPlane  bool     // the machine is a control-plane machine
	controlPlanes []string // the control-plane machines in its configuration
}

// readRole reads the role from a machine's documents. It does not set the name of the machine.
func readRole(documents []byte) (p machineRole, err error) {
	for dec := yaml.NewDecoder(bytes.NewReader(documents)); ; {
		var doc struct {
			Kind string `yaml:"kind"`
			Spec struct {
				Role          config.Role `yaml:"role"`
				ControlPlanes []string    `yaml:"controlPlanes"`
			} `yaml:"spec"`
		}
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return p, nil
		case err != nil:
			return p, fmt.Errorf("configuration: cannot read the machine's answer: %w", err)
		case doc.Kind == "Machine":
			p.controlPlane = doc.Spec.Role == config.RoleControlPlane
		case doc.Kind == "Cluster":
			p.controlPlanes = doc.Spec.ControlPlanes
		}
	}
}

// checkRoles returns the number of control-plane machines. It returns an error if a control-plane
// machine of the cluster is missing: a machine that misses a step could not verify the other
// machines, or could not decrypt their Secrets.
func checkRoles(names []string, all []machineRole) (count int, err error) {
	machines := map[string]bool{} // two addresses may name the same machine
	for _, p := range all {
		if p.controlPlane {
			machines[p.machine] = true
		}
	}
	for i, p := range all {
		if p.controlPlane && len(p.controlPlanes) > len(machines) {
			return 0, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("machine %s: its cluster has %d control-plane machines (%s), and %d of the named machines have a control plane", names[i], len(p.controlPlanes), strings.Join(p.controlPlanes, ", "), len(machines)), Hint: "name all of them with -n"}
		}
	}
	return len(machines), nil
}

// checkWorkers returns an error if a worker of the cluster is missing. workers maps the names of
// the workers to their addresses. A worker without the new CA could not verify any other machine.
func checkWorkers(all []machineRole, workers map[string]string) error {
	missing := maps.Clone(workers)
	for _, m := range all {
		delete(missing, m.machine)
	}
	if len(missing) == 0 {
		return nil
	}
	return &exit.Error{
		Code: exit.Usage, Err: fmt.Errorf("the cluster has workers that are not in --nodes: %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", ")),
		Hint: "name all machines of the cluster with -n (" + strings.Join(slices.Sorted(maps.Values(missing)), ",") + "), and remove the workers that no longer exist (`orlopctl nodes remove`)",
	}
}
