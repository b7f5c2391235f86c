package main

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestLoopbackPorts: whatever port of loopback a part of the node is told of is one that no host port takes.
func TestLoopbackPorts(t *testing.T) {
	known := slices.Concat(nodespec.MachineTCP(), nodespec.LoopbackTCP())
	for _, port := range []int{kubelet.HealthPort, kubeproxy.HealthPort, controllermanager.Port, scheduler.Port} {
		if !slices.Contains(known, port) {
			t.Errorf("port %d is not among those of loopback", port)
		}
	}
	several, worker := testSpec(), testSpec()
	several.ControlPlanes = append([]netip.Addr{netip.MustParseAddr("192.0.2.9")}, several.NodeIPs...)
	worker.ControlPlane = false
	found := 0
	for _, spec := range []nodespec.Spec{testSpec(), several, worker} {
		for _, c := range Services(spec, layout.System()) {
			for _, match := range regexp.MustCompile(`(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)`).FindAllStringSubmatch(c.String(), -1) {
				found++
				if port, err := strconv.Atoi(match[1]); err != nil || !slices.Contains(known, port) {
					t.Errorf("%s: %s is not among the ports of loopback", c.Name, match[0])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no part is told of a port of loopback any more: the test looks for the wrong thing")
	}
}
