package main

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestDrainLine checks the line about a drain. The line contains the blocked pods with their
// budgets or, without such pods, the problem. After the end of the drain, the line is empty.
func TestDrainLine(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 7, 1, 0, time.UTC)
	blocked := nodespec.DrainPod{Pod: "shop/web-1", State: nodespec.DrainBlocked, Budget: "web", Message: "it needs 1\x1b[31m pod"}
	for want, s := range map[string]drainState{
		"": {Node: "m1", Phase: "drained"},
		"node m1 is drained until 03:07:01Z at most: 2 pods evicted, 1 left; pod shop/web-1 blocks it: PodDisruptionBudget web: it needs 1?[31m pod": {
			Node: "m1", Phase: "running", Deadline: at, DrainProgress: nodespec.DrainProgress{Evicted: 2, Left: 1, Pods: []nodespec.DrainPod{blocked}, Problem: "pod shop/web-1"},
		},
		"node m1 is drained until 03:07:01Z at most: 2 pods evicted, 1 left; cannot read the node: connection refused": {
			Node: "m1", Phase: "running", Deadline: at, DrainProgress: nodespec.DrainProgress{Evicted: 2, Left: 1, Pods: []nodespec.DrainPod{{Pod: "shop/db", State: nodespec.DrainEnding}}, Problem: "cannot read the node: connection refused"},
		},
	} {
		if got := drainLine(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
