package kubelet

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

func spec() nodespec.Spec {
	kubernetes := config.DefaultKubernetes()
	kubernetes.MaxPods = 60
	return nodespec.Spec{
		Cluster: "c",
		Node: nodespec.Node{
			Name:           "node-1",
			Taint:          true,
			IPs:            []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8::1")},
			ReservedMemory: 512 << 20,
			ReservedCPU:    250,
		},
		Network:    nodespec.Network{DNSDomain: "cluster.local", DNSIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}},
		Kubernetes: kubernetes,
	}
}

// TestSwap checks that containers can use swap only if the machine has swap, and that the kubelet
// accepts both configurations.
func TestSwap(t *testing.T) {
	for size, want := range map[uint64]string{0: "", 1 << 30: "LimitedSwap"} {
		s := spec()
		s.Node.Swap = size
		server := parsed(t, s)
		if got := server.MemorySwap.SwapBehavior; got != want || server.FailSwapOn {
			t.Errorf("%d bytes: %q, fail %t; want %q", size, got, server.FailSwapOn, want)
		}
		server.FailCgroupV1 = false // validation would inspect the test machine
		if err := options.ValidateKubeletServer(server); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// parsed returns upstream's options for spec.
func parsed(t *testing.T, spec nodespec.Spec) *options.KubeletServer {
	t.Helper()
	c := Component(spec, dirs.In(t.TempDir()))
	if err := c.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	server, err := parse(context.Background(), c.Args)
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// TestUpstreamTakesTheConfiguration checks that the kubelet accepts the configuration, and that its
// options have the important settings.
func TestUpstreamTakesTheConfiguration(t *testing.T) {
	server := parsed(t, spec())
	validated := *server
	validated.FailCgroupV1 = false // validation would inspect the test machine
	if err := options.ValidateKubeletServer(&validated); err != nil {
		t.Fatal(err)
	}
	if server.NodeIP != "192.0.2.10,2001:db8::1" {
		t.Errorf("node addresses %s, want the first of each family", server.NodeIP)
	}
	config := server.KubeletConfiguration
	if config.ReadOnlyPort != 0 || config.Authentication.Anonymous.Enabled || !config.Authentication.Webhook.Enabled || config.Authorization.Mode != "Webhook" {
		t.Error("clients without authentication can read from the kubelet")
	}
	if config.EnableSystemLogHandler || config.EnableSystemLogQuery {
		t.Error("nodes/log serves the logs of the machine")
	}
	if !config.SeccompDefault || !config.ProtectKernelDefaults || !config.FailCgroupV1 {
		t.Error("the setting for seccomp profiles of pods, kernel parameters or cgroups is missing")
	}
	if config.MaxPods != 60 || len(config.RegisterWithTaints) != 1 || config.SystemReserved["memory"] != "536870912" || config.SystemReserved["cpu"] != "250m" {
		t.Errorf("the settings of the node are missing: %d pods, taints %v, reserved %v", config.MaxPods, config.RegisterWithTaints, config.SystemReserved)
	}
	if len(config.AllowedUnsafeSysctls) != 0 || config.PodPidsLimit != 4096 {
		t.Error("by default, pods can set unsafe sysctls, or can have more than 4096 processes")
	}
	if len(config.TLSCipherSuites) == 0 || config.TLSMinVersion == "" {
		t.Error("the restrictions of TLS are missing")
	}
}

// TestUpstreamTakesTheLabels checks that the kubelet registers a new Node with the configured
// labels, and with a taint that accepts no pods until the configured taints are set.
func TestUpstreamTakesTheLabels(t *testing.T) {
	reference, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	labels := reference.Machine.Spec.Node.Labels
	for _, key := range []string{"feature.node.kubernetes.io/x", "a.kubelet.kubernetes.io/x", "node.kubernetes.io/instance-type", "x"} {
		labels[key] = "y"
	}
	server := parsed(t, spec())
	registerLabels(server, nodespec.NodeLabels{})
	if len(server.NodeLabels) != 0 || len(server.RegisterWithTaints) != 1 {
		t.Errorf("without configured labels and taints, the Node has %v, %v", server.NodeLabels, server.RegisterWithTaints)
	}
	registerLabels(server, nodespec.NodeLabels{Labels: labels, Taints: []nodespec.Taint{{Key: "a", Effect: "NoExecute"}}})
	server.FailCgroupV1 = false // validation would inspect the test machine
	if err := options.ValidateKubeletServer(server); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(server.NodeLabels, labels) || len(labels) < 7 {
		t.Errorf("labels %v, want %v", server.NodeLabels, labels)
	}
	if all := server.RegisterWithTaints; len(all) != 2 || all[1].ToString() != nodespec.TaintsPending+":NoSchedule" {
		t.Errorf("taints %v", all)
	}
}

// TestNoUnknownField decodes the configuration strictly, because the kubelet only warns about an
// unknown field.
func TestNoUnknownField(t *testing.T) {
	content := configuration(spec(), dirs.System(), "/run/resolv.conf")
	if err := yaml.UnmarshalStrict([]byte(content), &v1beta1.KubeletConfiguration{}); err != nil {
		t.Error(err)
	}
	if err := yaml.UnmarshalStrict([]byte(content+"noSuchField: true\n"), &v1beta1.KubeletConfiguration{}); err == nil {
		t.Error("an unknown field was accepted")
	}
}

func TestResolvConf(t *testing.T) {
	if got := resolvConf(nodespec.Spec{}); got != "" {
		t.Errorf("without resolvers: %q, want nothing", got)
	}
	got := resolvConf(nodespec.Spec{
		DNS: nodespec.DNS{
			NodeUpstreams: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")},
			NodeSearch:    []string{"corp.example", "cluster.local", "lab.example"},
		},
		Network: nodespec.Network{DNSDomain: "cluster.local"},
	})
	if want := "nameserver 192.0.2.53\nnameserver 2001:db8::53\nsearch corp.example lab.example\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSearchFits checks that the search domains of the cluster and those of the machine together
// are within the limits, so the kubelet omits none of them.
func TestSearchFits(t *testing.T) {
	long := strings.Repeat("a", 60) + "." + strings.Repeat("b", 60) + "." + strings.Repeat("c", 60) + ".example"
	for name, spec := range map[string]nodespec.Spec{
		"many":               {Network: nodespec.Network{DNSDomain: "cluster.local"}, DNS: nodespec.DNS{NodeSearch: slices.Repeat([]string{"corp.example"}, 100)}},
		"long":               {Network: nodespec.Network{DNSDomain: "cluster.local"}, DNS: nodespec.DNS{NodeSearch: slices.Repeat([]string{long}, 100)}},
		"long, long cluster": {Network: nodespec.Network{DNSDomain: long}, DNS: nodespec.DNS{NodeSearch: slices.Repeat([]string{"x" + long}, 100)}},
	} {
		domains := searchDomains(spec)
		all := append([]string{strings.Repeat("n", longestNamespace) + ".svc." + spec.Network.DNSDomain, "svc." + spec.Network.DNSDomain, spec.Network.DNSDomain}, domains...)
		if len(domains) == 0 || len(all) > validation.MaxDNSSearchPaths || len(strings.Join(all, " ")) > validation.MaxDNSSearchListChars {
			t.Errorf("%s: %d domains of %d characters", name, len(all), len(strings.Join(all, " ")))
		}
	}
}

// TestVolumePlugins checks that the kubelet has only these volume plugins of upstream, and looks
// for no programs of volume plugins on a disk. All other volume types need a CSI driver.
func TestVolumePlugins(t *testing.T) {
	c := Component(spec(), dirs.In(t.TempDir()))
	if err := c.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	server, err := parse(t.Context(), c.Args)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := prepare(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, plugin := range parts.VolumePlugins {
		names = append(names, strings.TrimPrefix(plugin.GetPluginName(), "kubernetes.io/"))
	}
	slices.Sort(names)
	const want = "configmap csi downward-api empty-dir fc git-repo host-path image iscsi local-volume nfs projected secret"
	if have := strings.Join(names, " "); have != want {
		t.Errorf("volume plugins: %s, want %s", have, want)
	}
	if parts.DynamicPluginProber != nil {
		t.Error("the kubelet looks for FlexVolume drivers, which are programs that it runs as root")
	}
}
