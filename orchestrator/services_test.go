package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/coredns"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/imagepolicy"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/netpolicy"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestServices compares all flags and files of all components of a node with golden files.
func TestServices(t *testing.T) {
	worker := testSpec()
	worker.Node.ControlPlane, worker.Node.Name, worker.DNS.NodeUpstreams = false, "worker-1", nil
	worker.Node.IPs = []netip.Addr{netip.MustParseAddr("192.0.2.20")}
	dual := testSpec()
	dual.Node.IPs = append(dual.Node.IPs, netip.MustParseAddr("2001:db8::10"))
	dual.Network.PodCIDRs = append(dual.Network.PodCIDRs, netip.MustParsePrefix("fd00:10:244::/56"))
	dual.Network.ServiceCIDRs = append(dual.Network.ServiceCIDRs, netip.MustParsePrefix("fd00:10:96::/112"))
	dual.Network.DNSIPs = append(dual.Network.DNSIPs, netip.MustParseAddr("fd00:10:96::a"))
	dual.PodCertificates = true
	dual.Node.Taint, dual.Kubernetes.PodSecurity = true, config.PodSecurity{Default: config.PodSecurityRestricted}
	dual.Network.Pools = []nodespec.Pool{{Name: "public", Ranges: []nodespec.Range{{First: netip.MustParseAddr("192.0.2.64"), Last: netip.MustParseAddr("192.0.2.95")}}}}
	several := testSpec()
	several.ControlPlanes = append([]netip.Addr{netip.MustParseAddr("192.0.2.9")}, several.Node.IPs...)
	several.VirtualAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.8")}
	routed := several
	routed.Network.AnnounceAPI = true
	routed.Network.BGP = &nodespec.BGP{ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.10"), Peers: []nodespec.BGPPeer{
		{Address: netip.MustParseAddrPort("192.0.2.1:179"), ASN: 64513, HoldTime: 9},
	}}
	routed.Network.Pools = []nodespec.Pool{{Name: "public", BGP: true}}
	for name, spec := range map[string]nodespec.Spec{"control-plane": testSpec(), "control-planes": several, "worker": worker, "dual-stack": dual, "routed": routed} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for _, c := range Services(spec, dirs.System()) {
				b.WriteString(c.String() + "\n")
			}
			golden.Assert(t, b.String(), name+".golden")
		})
	}
}

// TestEmulation compares with a golden file the flags that differ between the present level of a
// cluster and the former level.
func TestEmulation(t *testing.T) {
	var b strings.Builder
	for _, certificates := range []bool{false, true} {
		own := testSpec()
		own.PodCertificates = certificates
		older := own
		older.Level, older.Emulated = emulation.Minor{Major: 1, Minor: 36}, emulation.Minor{Major: 1, Minor: 36}
		fmt.Fprintf(&b, "pod certificates: %t\n", certificates)
		before, after := Services(own, dirs.System()), Services(older, dirs.System())
		for i, c := range after {
			for _, arg := range before[i].Args {
				if !slices.Contains(c.Args, arg) {
					fmt.Fprintf(&b, "- %s %s\n", c.Name, arg)
				}
			}
			for _, arg := range c.Args {
				if !slices.Contains(before[i].Args, arg) {
					fmt.Fprintf(&b, "+ %s %s\n", c.Name, arg)
				}
			}
		}
	}
	golden.Assert(t, b.String(), "emulation.golden")
}

// TestSettings compares with a golden file the flags and lines of files that differ if all settings
// of components are configured. The settings are those of config.Reference, which has an example of
// each.
func TestSettings(t *testing.T) {
	before := map[string]string{}
	for _, c := range Services(testSpec(), dirs.System()) {
		before[c.Name] = c.String()
	}
	var b strings.Builder
	for _, c := range Services(referenceSpec(t), dirs.System()) {
		was, is := strings.Split(before[c.Name], "\n"), strings.Split(c.String(), "\n")
		for _, line := range was {
			if !slices.Contains(is, line) {
				fmt.Fprintf(&b, "- %s %s\n", c.Name, line)
			}
		}
		for _, line := range is {
			if !slices.Contains(was, line) {
				fmt.Fprintf(&b, "+ %s %s\n", c.Name, line)
			}
		}
	}
	golden.Assert(t, b.String(), "settings.golden")
}

// TestImagePolicy checks that, with rules for images, the kubelet reaches containerd only through
// the proxy, and that the proxy starts before the kubelet and stops after it.
func TestImagePolicy(t *testing.T) {
	find := func(all []component.Component, name string) int {
		return slices.IndexFunc(all, func(c component.Component) bool { return c.Name == name })
	}
	endpoint := func(all []component.Component) string {
		for line := range strings.Lines(all[find(all, kubelet.Name)].String()) {
			if _, socket, found := strings.Cut(line, "containerRuntimeEndpoint: "); found {
				return strings.TrimSpace(socket)
			}
		}
		return ""
	}
	spec, dirs := testSpec(), dirs.System()
	if all := Services(spec, dirs); find(all, imagepolicy.Name) >= 0 || endpoint(all) != "unix://"+dirs.ContainerdSocket {
		t.Errorf("without rules, the kubelet reaches %s", endpoint(all))
	}
	spec.Node.ImagePolicy = []config.ImageRule{{Images: []config.RepositoryPattern{"*"}, Unsigned: true}}
	all := Services(spec, dirs)
	if proxy := find(all, imagepolicy.Name); proxy < 0 || proxy > find(all, kubelet.Name) || all[proxy].Process != component.Node {
		t.Errorf("the proxy is component %d and the kubelet is component %d, want the proxy first, in the process of the node", proxy, find(all, kubelet.Name))
	}
	if got, want := endpoint(all), "unix://"+imagepolicy.RuntimeSocket(spec, dirs); got != want || strings.Contains(got, dirs.ContainerdSocket) {
		t.Errorf("the kubelet reaches %s, want %s", got, want)
	}
}

// referenceSpec returns testSpec with the settings of components in config.Reference.
func referenceSpec(t *testing.T) nodespec.Spec {
	t.Helper()
	reference, problems := config.Parse("reference", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	spec := testSpec()
	spec.Kubernetes = reference.Cluster.Spec.Kubernetes
	return spec
}

// TestEmulatedGates checks the feature gates of components that emulate a former version. A
// component gets only those of the configured gates that the former version knows.
func TestEmulatedGates(t *testing.T) {
	spec := testSpec()
	spec.Kubernetes.FeatureGates = config.FeatureGates{
		"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true, "CompositePodGroup": true, "EvictionRequestAPI": true, "WatchList": false,
	}
	for minor, want := range map[int]string{
		37: "--feature-gates=CompositePodGroup=true,EvictionRequestAPI=true,GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WatchList=false",
		36: "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WatchList=false",
	} {
		spec.Emulated = emulation.Minor{Major: 1, Minor: minor}
		if got := component.GateFlags(spec); len(got) != 1 || got[0] != want {
			t.Errorf("1.%d: %q, want %q", minor, got, want)
		}
	}
}

// TestExternal checks that each external component has a placeholder in the list of components. The
// placeholder has the name of the component, but no flags and no files.
func TestExternal(t *testing.T) {
	spec := testSpec()
	spec.External = nodespec.External{Proxy: true, DNS: true, Network: true}
	found := 0
	for _, c := range Services(spec, dirs.System()) {
		if c.Name == kubeproxy.Name || c.Name == coredns.Name || c.Name == netpolicy.Name {
			found++
			if len(c.Args)+len(c.Files) > 0 || c.Run == nil {
				t.Errorf("an external component has flags or files, or no function Run: %s", c)
			}
		}
	}
	if found != 3 {
		t.Errorf("the list has %d of 3 external components", found)
	}
}
