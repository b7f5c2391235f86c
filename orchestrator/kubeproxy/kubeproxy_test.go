package kubeproxy

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestUpstreamTakesTheConfiguration has upstream decode and check the file, for one and for two address families.
func TestUpstreamTakesTheConfiguration(t *testing.T) {
	for _, ranges := range [][]netip.Prefix{
		{netip.MustParsePrefix("10.244.0.0/16")},
		{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
	} {
		dirs := layout.Under(t.TempDir())
		c := Component(nodespec.Spec{Cluster: "c", NodeName: "node-1", ControlPlane: true, PodCIDRs: ranges}, dirs)
		if err := c.WriteFiles(); err != nil {
			t.Fatal(err)
		}
		if _, err := parse(c.Args); err != nil {
			t.Errorf("pod ranges %v: %v", ranges, err)
		}
	}
}
