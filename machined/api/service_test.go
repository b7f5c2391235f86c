package api

import (
	"testing"

	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestServiceOf checks that a component is found in its service, and that a service is no component
// of itself.
func TestServiceOf(t *testing.T) {
	all := []supervise.Status{
		{Name: "containerd"},
		{Name: "orchestrator-node", Components: []supervise.Component{{Name: "kubelet"}, {Name: "orchestrator-node"}, {}}},
	}
	for name, want := range map[string]string{"kubelet": "orchestrator-node", "orchestrator-node": "", "containerd": "", "": "", "nginx": ""} {
		if got := serviceOf(all, name); got != want {
			t.Errorf("%q is a part of %q, want %q", name, got, want)
		}
	}
}
