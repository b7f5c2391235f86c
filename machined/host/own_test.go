package host

import (
	"slices"
	"testing"

	"github.com/orlop-os/orlop/pkg/kernel/sysctl"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestOwnSysctlsAreRejected checks that a configuration cannot set the parameters that the system
// sets, because such a value would never take effect. The exceptions are the two parameters for
// which the system uses the configured value.
func TestOwnSysctlsAreRejected(t *testing.T) {
	for _, s := range planSysctls(Config{Pods: true}, small) {
		if (sysctl.ReservedReason(s.Name) == "") != (s.Name == minFreeName || s.Name == reservedPortsName) {
			t.Errorf("%s: a configuration can set this parameter: %v", s.Name, sysctl.ReservedReason(s.Name) == "")
		}
	}
}

// TestReservedPorts checks that the kernel never chooses a port of the system for an outgoing
// connection, also if the configuration reserves other ports.
func TestReservedPorts(t *testing.T) {
	own := slices.Concat(nodespec.MachineTCP(), nodespec.MachineUDP(), nodespec.LoopbackTCP())
	for _, c := range []struct {
		sysctls map[string]string
		further []int // the ports that the configuration reserves
	}{
		{nil, nil},
		{map[string]string{reservedPortsName: ""}, nil},
		{map[string]string{reservedPortsName: "8080,30000-30001"}, []int{8080, 30000, 30001}},
	} {
		var value string
		for _, s := range planSysctls(Config{Sysctls: c.sysctls}, small) {
			if sysctl.Canonical(s.Name) == reservedPortsName {
				value = s.Value
			}
		}
		reserved, ok := ranges(value)
		if !ok {
			t.Errorf("%v: %q is not a list of ports", c.sysctls, value)
		}
		for _, port := range slices.Concat(own, c.further) {
			if !slices.ContainsFunc(reserved, func(r [2]uint64) bool { return r[0] <= uint64(port) && uint64(port) <= r[1] }) {
				t.Errorf("%v: port %d is not in %s", c.sysctls, port, value)
			}
		}
	}
}
