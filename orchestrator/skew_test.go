package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/skew"
	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// listVersionsOf checks what skew.List returns on a control-plane machine: the Nodes, and the
// versions of the other API servers. On a worker, it returns the versions of all API servers, and
// no Nodes.
func listVersionsOf(ctx context.Context, t *testing.T, m machine, spec nodespec.Spec) {
	isOwn := func(n disruption.Node) bool { return n.Name == spec.Node.Name && n.ControlPlane }
	alone := skew.List(ctx, spec, m.dirs)
	if alone.Problem != "" || len(alone.Servers) != 0 || !slices.ContainsFunc(alone.Nodes, isOwn) {
		t.Errorf("the only control-plane machine: %+v", alone)
	}
	// The specification other is that of another machine. For it, this machine is a peer.
	other := spec
	other.ControlPlanes = []netip.Addr{spec.Node.IPs[0], netip.MustParseAddr("192.0.2.99")}
	other.Node.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.99")}
	for _, controlPlane := range []bool{true, false} {
		other.Node.ControlPlane = controlPlane
		seen := skew.List(ctx, other, m.dirs)
		if seen.Problem != "" || len(seen.Servers) != 1 || !strings.HasPrefix(seen.Servers[0].Version, "v") || seen.Servers[0].Problem != "" {
			t.Errorf("control plane %v: %+v", controlPlane, seen)
		}
		if slices.ContainsFunc(seen.Nodes, isOwn) != controlPlane {
			t.Errorf("control plane %v: the Nodes are %+v", controlPlane, seen.Nodes)
		}
	}
	other.ControlPlanes = []netip.Addr{netip.MustParseAddr("198.51.100.1")} // no route
	if seen := skew.List(ctx, other, m.dirs); len(seen.Servers) != 1 || seen.Servers[0].Problem == "" {
		t.Errorf("a worker, while no API server answers: %+v", seen)
	}
}
