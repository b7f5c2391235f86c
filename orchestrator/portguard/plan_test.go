package portguard

import (
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"gotest.tools/v3/golden"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// TestCommands compares the tables of a node in a cluster with both families with golden files. All
// pods may reach the kubelets, or a single pod, or none. The order of the addresses of machines
// does not change the tables.
func TestCommands(t *testing.T) {
	w := Input{
		Machines: addresses("10.0.0.6", "10.0.0.5", "2001:db8::5", "10.0.0.5"),
		Pods:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")},
	}
	golden.Assert(t, w.Commands(), "open.txt")
	w.Kubelet = config.Kubelet{ClosedToPods: true, OpenToNamespaces: []string{"monitoring"}}
	w.Readers = addresses("10.244.1.9", "fd00:244:0:1::9")
	golden.Assert(t, w.Commands(), "readers.txt")
	w.Readers, w.Pods = nil, w.Pods[:1]
	golden.Assert(t, w.Commands(), "closed.txt")
	turned := w
	turned.Machines = addresses("2001:db8::5", "10.0.0.5", "10.0.0.6")
	if turned.Commands() != w.Commands() {
		t.Error("the order of the addresses changes the tables")
	}
}
