package firewall

import (
	"testing"

	"gotest.tools/v3/golden"
)

// TestGuard compares all commands for the port guard with golden files, with and without networks
// of pods.
func TestGuard(t *testing.T) {
	g := Guard{TCP: []int{6443, 50000}, UDP: []int{8472}, Loopback: []int{10249}, Closed: []int{2379, 50000}, Pods: prefixes("10.244.0.0/16", "fd00:244::/48")}
	golden.Assert(t, g.Commands("cni0"), "guard.txt")
	golden.Assert(t, Guard{TCP: []int{50000}, UDP: []int{8472}, Loopback: []int{10249}, Closed: []int{50000}}.Commands("cni0"), "guard-alone.txt")
}
