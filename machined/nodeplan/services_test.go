package nodeplan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/supervise"
	"gotest.tools/v3/golden"
)

// sampleExtensions are two extensions with runtime handlers, CDI specifications and services.
var sampleExtensions = []extension.Statement{
	{Name: "gvisor", Runtimes: []extension.Runtime{{Handler: "runsc", Type: "io.containerd.runsc.v1", Config: "/usr/share/orlop/extensions/gvisor/runsc.toml"}}},
	{
		Name: "gpu", Files: []extension.File{{Path: extension.CDIDir + "/gpu.json"}},
		Runtimes: []extension.Runtime{{Handler: "gpu", Type: "io.containerd.gpu.v2"}},
		Services: []extension.Service{
			{Name: "gpu-agent", Args: []string{"/usr/bin/gpu-agent", "run"}, User: 200, Capabilities: []string{"SYS_ADMIN"}, Memory: 64 << 20, Processes: 16, State: true},
			{Name: "gpu-root", Args: []string{"/usr/bin/gpu-agent"}, Memory: 32 << 20, Processes: 4},
		},
	},
}

// TestGolden compares every service with all its parameters, and containerd's configuration, with
// golden files.
func TestGolden(t *testing.T) {
	show := func(services []supervise.Service) []byte {
		if err := supervise.Validate(services); err != nil {
			t.Fatal(err)
		}
		text, err := json.MarshalIndent(services, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		return append(text, '\n')
	}
	for name, got := range map[string][]byte{
		"services-unconfigured.json": show([]supervise.Service{Apid()}),
		"services-controlplane.json": show(append([]supervise.Service{Apid()}, Kubernetes(true)...)),
		"services-worker.json":       show(append([]supervise.Service{Apid()}, Kubernetes(false)...)),
		"services-removed.json":      show(withoutNode(append([]supervise.Service{Apid()}, Kubernetes(false)...))),
		"containerd-extensions.toml": containerdConfig("registry.example/pause:1", false, false, sampleExtensions),
		"services-extensions.json":   show(Plan(nil, Facts{Extensions: sampleExtensions}).Services.All),
		"containerd-metrics.toml":    containerdConfig("registry.example/pause:1", false, true, nil),
		"containerd.toml":            containerdConfig("registry.example/pause:1", false, false, nil),
	} {
		golden.Assert(t, string(got), name)
	}
}

// TestExternalNetwork checks that containerd also uses the CNI plugins that an external pod network
// installs.
func TestExternalNetwork(t *testing.T) {
	const ours, both = `bin_dirs = ["/usr/libexec/cni"]`, `bin_dirs = ["/var/lib/cni/bin", "/usr/libexec/cni"]`
	own := string(containerdConfig("pause", false, false, nil))
	if got := string(containerdConfig("pause", true, false, nil)); got != strings.Replace(own, ours, both, 1) || !strings.Contains(got, both) {
		t.Errorf("containerd's configuration:\n%s", got)
	}
}

// TestOfNode checks that apid and the services of extensions are not services of the node.
// Therefore they already run at boot, while parts of DATA move to volumes.
func TestOfNode(t *testing.T) {
	for _, s := range append([]supervise.Service{Apid()}, Extensions(sampleExtensions)...) {
		if OfNode(s) {
			t.Errorf("OfNode counts %s as a service of the node", s.Name)
		}
	}
	for _, s := range Kubernetes(true) {
		if !OfNode(s) {
			t.Errorf("OfNode does not count %s as a service of the node", s.Name)
		}
	}
}
