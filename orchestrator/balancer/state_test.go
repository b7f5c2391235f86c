package balancer

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

var begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// TestSpread checks that nodes spread over the servers, and that when a server is removed, only its
// nodes move.
func TestSpread(t *testing.T) {
	const nodes = 3000
	first := func(node string, planes ...string) string {
		spec := nodespec.Spec{Node: nodespec.Node{Name: node}, Endpoint: "https://cluster.example:6443"}
		for _, p := range planes {
			spec.ControlPlanes = append(spec.ControlPlanes, netip.MustParseAddr(p))
		}
		all, err := Servers(spec)
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	count := map[string]int{}
	for i := range nodes {
		node := fmt.Sprintf("worker-%d", i)
		with := first(node, "10.0.0.1", "10.0.0.2", "10.0.0.3")
		if with != first(node, "10.0.0.3", "10.0.0.1", "10.0.0.2") {
			t.Errorf("%s: another order of the list selects another server", node)
		}
		if without := first(node, "10.0.0.1", "10.0.0.2"); with != "10.0.0.3:6443" && without != with {
			t.Errorf("%s moves from %s to %s although the former server still exists", node, with, without)
		}
		count[with]++
	}
	for server, n := range count {
		if len(count) != 3 || n < nodes*28/100 || n > nodes*39/100 {
			t.Errorf("%s has %d of %d nodes: %v", server, n, nodes, count)
		}
	}
}
