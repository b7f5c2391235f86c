package nodeplan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/supervise"
	"gotest.tools/v3/golden"
)

// TestGolden shows every service of a machine with all its parameters, and containerd's
// configuration.
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
		"containerd.toml":            containerdConfig("registry.example/pause:1", false),
	} {
		golden.Assert(t, string(got), name)
	}
}

// TestExternalNetwork checks that an external pod network installs its plugins.
func TestExternalNetwork(t *testing.T) {
	const ours, both = `bin_dirs = ["/usr/libexec/cni"]`, `bin_dirs = ["/var/lib/cni/bin", "/usr/libexec/cni"]`
	own := string(containerdConfig("pause", false))
	if got := string(containerdConfig("pause", true)); got != strings.Replace(own, ours, both, 1) || !strings.Contains(got, both) {
		t.Errorf("containerd's configuration:\n%s", got)
	}
}
