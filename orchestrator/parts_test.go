package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestParts compares a list of all components with a golden file. The list shows the machines on
// which each component runs and its extension points, for a cluster of several control-plane
// machines.
func TestParts(t *testing.T) {
	spec, at := testSpec(), dirs.In(t.TempDir())
	spec.ControlPlanes = append([]netip.Addr{netip.MustParseAddr("192.0.2.9")}, spec.Node.IPs...)
	if err := os.MkdirAll(at.Controllers, 0o700); err != nil {
		t.Fatal(err)
	}
	c := scheduler.Component(spec, at)
	if err := c.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	show := func(spec nodespec.Spec) string {
		all, err := parts(spec, at)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, p := range all {
			fmt.Fprintf(&b, "%s %s: %s, of Kubernetes %t\n", p.Process, p.Name, p.RunsOn, p.Kubernetes)
			for _, e := range p.Extensions {
				fmt.Fprintf(&b, "  %s %s: %s %s\n", e.Point, e.Name, e.Source, e.Detail)
			}
		}
		return b.String()
	}
	golden.Assert(t, show(spec), "parts.golden")
	external := spec
	external.External.Proxy = true
	if text := show(external); !strings.Contains(text, "node kube-proxy: External") {
		t.Errorf("kube-proxy is not external, although an add-on replaces it: %s", text)
	}
	single := spec
	single.ControlPlanes = nil
	if text := show(single); !strings.Contains(text, "controllers kube-scheduler: ControlPlane") {
		t.Errorf("kube-scheduler of a single control-plane machine does not have the place ControlPlane: %s", text)
	}
}
