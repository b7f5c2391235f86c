//go:build linux

package network_test

import (
	"testing"

	"github.com/safchain/ethtool"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestOffloadNamesKernel checks that the kernel knows each offload that a configuration can name.
// The kernel has the same names for all drivers, so a veth link is enough.
func TestOffloadNamesKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	rtnltest.Veth(t, "eth0", "peer0")
	tool, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	names, err := tool.FeatureNames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range config.Offload("").Names() {
		if _, known := names[name]; !known {
			t.Errorf("the kernel has no feature %s", name)
		}
	}
}
