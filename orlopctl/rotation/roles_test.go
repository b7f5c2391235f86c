package rotation

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orlopctl/exit"
)

// TestCheckRoles checks that checkRoles rejects an incomplete list of the control-plane machines of
// a cluster. A worker does not count.
func TestCheckRoles(t *testing.T) {
	three := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	of := func(machine string, members ...string) machineRole {
		return machineRole{machine: machine, controlPlane: true, controlPlanes: members}
	}
	for name, c := range map[string]struct {
		all  []machineRole
		fine bool
	}{
		"a single machine":                             {[]machineRole{of("a")}, true},
		"one of three machines":                        {[]machineRole{of("a", three...)}, false},
		"two of three machines, one of them twice":     {[]machineRole{of("a", three...), of("a", three...), of("b", three...)}, false},
		"all machines":                                 {[]machineRole{of("a", three...), of("b", three...), of("c", three...)}, true},
		"all control-plane machines and a worker":      {[]machineRole{of("a", three[0]), {machine: "w", controlPlanes: three}}, true},
		"a worker in place of a control-plane machine": {[]machineRole{of("a", three[:2]...), {machine: "w", controlPlanes: three[:2]}}, false},
	} {
		names := make([]string, len(c.all))
		if _, err := checkRoles(names, c.all); (err == nil) != c.fine {
			t.Errorf("%s: error %v, want success: %t", name, err, c.fine)
		}
	}
	documents := "kind: Machine\nspec: {role: controlplane}\n---\nkind: Cluster\nspec: {controlPlanes: [10.0.0.1, 10.0.0.2]}\n"
	p, err := readRole([]byte(documents))
	if err != nil || !p.controlPlane || len(p.controlPlanes) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestCheckWorkers checks that checkWorkers returns an error if the call does not name all workers.
// The error has the names of the missing workers, and its hint has their addresses.
func TestCheckWorkers(t *testing.T) {
	named := []machineRole{{machine: "cp1", controlPlane: true}, {machine: "w1"}}
	if err := checkWorkers(named, map[string]string{"w1": "10.0.0.21"}); err != nil {
		t.Error(err)
	}
	err := checkWorkers(named, map[string]string{"w1": "10.0.0.21", "w3": "10.0.0.23", "w2": "10.0.0.22"})
	if _, hint := exit.Code(err); err == nil || !strings.HasSuffix(err.Error(), ": w2, w3") || !strings.Contains(hint, "-n (10.0.0.22,10.0.0.23)") {
		t.Errorf("%v, hint %q", err, hint)
	}
}
