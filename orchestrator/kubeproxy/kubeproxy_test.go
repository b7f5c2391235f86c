package kubeproxy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
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

// TestExternal: what ours has left is taken away when something else takes its place, and never again after that.
func TestExternal(t *testing.T) {
	configuration := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	cleanups, fails := 0, true
	run := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		return runExternal(ctx, configuration, func(context.Context) bool { cleanups++; return fails }, func(string, bool, string) { cancel() })
	}
	if err := run(); err != nil || cleanups != 0 {
		t.Errorf("it never ran here: %d cleanups, %v", cleanups, err)
	}
	if err := os.WriteFile(configuration, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(); err == nil {
		t.Error("rules that cannot be taken away are no error")
	}
	fails = false
	for range 2 {
		if err := run(); err != nil || cleanups != 2 {
			t.Errorf("%d cleanups, %v", cleanups, err)
		}
	}
}
