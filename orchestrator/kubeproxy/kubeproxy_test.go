package kubeproxy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestUpstreamTakesTheConfiguration checks that upstream accepts the configuration for one and for
// two address families. kube-proxy serves node ports on the machine's own addresses in the
// specification, not on those of the Node object.
func TestUpstreamTakesTheConfiguration(t *testing.T) {
	four, six := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")
	for _, c := range []struct {
		own       string
		ranges    []netip.Prefix
		nodePorts []string
	}{
		{"192.0.2.10", []netip.Prefix{four}, []string{"192.0.2.10/32"}},
		{"192.0.2.10 192.0.2.11 2001:db8::10 2001:db8::11", []netip.Prefix{four, six}, []string{"192.0.2.10/32", "2001:db8::10/128"}},
		{"2001:db8::10 192.0.2.10", []netip.Prefix{six, four}, []string{"2001:db8::10/128", "192.0.2.10/32"}},
		{"1:2:3:4:5:6:7:8", []netip.Prefix{six}, []string{"1:2:3:4:5:6:7:8/128"}},
	} {
		dirs := dirs.In(t.TempDir())
		spec := nodespec.Spec{Cluster: "c", Node: nodespec.Node{Name: "node-1", ControlPlane: true}, Network: nodespec.Network{PodCIDRs: c.ranges}}
		for ip := range strings.FieldsSeq(c.own) {
			spec.Node.IPs = append(spec.Node.IPs, netip.MustParseAddr(ip))
		}
		component := Component(spec, dirs)
		if err := component.WriteFiles(); err != nil {
			t.Fatal(err)
		}
		if _, err := parse(component.Args); err != nil {
			t.Errorf("%s: %v", c.own, err)
		}
		var have struct {
			BindAddress       string
			NodePortAddresses []string
			FeatureGates      map[string]bool
			Conntrack         map[string]any
		}
		if err := yaml.Unmarshal([]byte(configuration(spec, "")), &have); err != nil {
			t.Fatal(err)
		}
		if have.BindAddress != spec.Node.IPs[0].String() || !slices.Equal(have.NodePortAddresses, c.nodePorts) {
			t.Errorf("%s: %+v, want node ports at %q", c.own, have, c.nodePorts)
		}
		// The values of 0 leave the parameters of connection tracking unchanged, because
		// machined/host sets them.
		if want := map[string]any{"maxPerCore": 0.0, "min": 0.0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}; !reflect.DeepEqual(have.Conntrack, want) {
			t.Errorf("%s: connection tracking %v, want %v", c.own, have.Conntrack, want)
		}
		if on, set := have.FeatureGates["AllowServiceExternalIPs"]; on || !set {
			t.Errorf("%s: without ranges, kube-proxy uses the external addresses of Services", c.own)
		}
		spec.Network.ExternalIPs = []nodespec.Range{{First: spec.Node.IPs[0], Last: spec.Node.IPs[0]}}
		if !strings.Contains(configuration(spec, ""), "AllowServiceExternalIPs: true") {
			t.Errorf("%s: with ranges, kube-proxy does not use the external addresses of Services", c.own)
		}
	}
}

// TestExternal checks the component that runs in place of kube-proxy if kube-proxy is external. It
// removes the rules that an earlier kube-proxy has left, and does so until it succeeds once.
func TestExternal(t *testing.T) {
	configuration := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	cleanups, fails := 0, true
	run := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		return runExternal(ctx, configuration, func(context.Context) bool { cleanups++; return fails }, func(string, bool, string) { cancel() })
	}
	if err := run(); err != nil || cleanups != 0 {
		t.Errorf("without an earlier kube-proxy: %d cleanups, %v", cleanups, err)
	}
	if err := os.WriteFile(configuration, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(); err == nil {
		t.Error("a failed removal of the rules returns no error")
	}
	fails = false
	for range 2 {
		if err := run(); err != nil || cleanups != 2 {
			t.Errorf("%d cleanups, %v", cleanups, err)
		}
	}
}
