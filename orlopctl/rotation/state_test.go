package rotation

import (
	"fmt"
	"testing"
)

// TestPlan checks the remaining steps of three machines in different states. Each text lists, for
// each step, the number of the state after it and the machines that take the step, in their order.
// In each step, the control-plane machines 1 and 2 come before the worker 0.
func TestPlan(t *testing.T) {
	roles := []machineRole{{}, {controlPlane: true}, {controlPlane: true}}
	for _, c := range []struct {
		all  []progress
		want string
	}{
		{[]progress{{stateBefore, true}, {stateBefore, true}, {stateBefore, true}}, "[{1 [1 2 0]} {2 [1 2 0]} {3 [1 2 0]}]"},
		{[]progress{{accepted, true}, {issues, true}, {accepted, true}}, "[{2 [2 0]} {3 [1 2 0]}]"},
		{[]progress{{newOnly, true}, {newOnly, true}, {issues, true}}, "[{3 [2]}]"},
		{[]progress{{stateBefore, false}, {newOnly, true}, {newOnly, true}}, "[]"},
		{[]progress{{}, {}, {}}, "[]"},
	} {
		if got := fmt.Sprint(plan(order(len(c.all), roles), c.all)); got != c.want {
			t.Errorf("%v: got %s, want %s", c.all, got, c.want)
		}
	}
}
