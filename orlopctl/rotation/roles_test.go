package rotation

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orlopctl/exit"
)

// TestCheckRoles checks that checkRoles rejects an incomplete list of control-plane machines.
func TestCheckRoles(t *testing.T) {
	three := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	of := func(machine string, members ...string) machineRole {
		return machineRole{machine: machine, controlPlane: true, controlPlanes: members}
	}
	for name, c := range map[string]struct {
		all  []machineRole
		fine bool
	}{
		"one alone":            {[]machineRole{of("a")}, true},
		"one of three":         {[]machineRole{of("a", three...)}, false},
		"one, by two names":    {[]machineRole{of("a", three...), of("a", three...), of("b", three...)}, false},
		"all":                  {[]machineRole{of("a", three...), of("b", three...), of("c", three...)}, true},
		"all, and a worker":    {[]machineRole{of("a", three[0]), {machine: "w", controlPlanes: three}}, true},
		"a worker for another": {[]machineRole{of("a", three[:2]...), {machine: "w", controlPlanes: three[:2]}}, false},
	} {
		names := make([]string, len(c.all))
		if _, err := checkRoles(names, c.all); (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
	documents := "kind: Machine\nspec: {role: controlplane}\n---\nkind: Cluster\nspec: {controlPlanes: [10.0.0.1, 10.0.0.2]}\n"
	p, err := readRole([]byte(documents))
	if err != nil || !p.controlPlane || len(p.controlPlanes) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestCheckWorkers checks that the error names each missing worker, and that the hint has its
// address.
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
