package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/supervise"
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
		"services-unconfigured.json": show([]supervise.Service{apidService()}),
		"services-controlplane.json": show(append([]supervise.Service{apidService()}, kubernetes(true)...)),
		"services-worker.json":       show(append([]supervise.Service{apidService()}, kubernetes(false)...)),
		"services-removed.json":      show(withoutNode(append([]supervise.Service{apidService()}, kubernetes(false)...))),
		"containerd.toml":            containerdConfig("registry.example/pause:1", false),
	} {
		golden.Assert(t, string(got), name)
	}
}

// TestExternalNetwork checks that an external pod network installs its plugins, and that plugins of
// an earlier boot do not run.
func TestExternalNetwork(t *testing.T) {
	const ours, both = `bin_dirs = ["/usr/libexec/cni"]`, `bin_dirs = ["/var/lib/cni/bin", "/usr/libexec/cni"]`
	own := string(containerdConfig("pause", false))
	if got := string(containerdConfig("pause", true)); got != strings.Replace(own, ours, both, 1) || !strings.Contains(got, both) {
		t.Errorf("containerd's configuration:\n%s", got)
	}
	dir := t.TempDir()
	configuration, plugins := filepath.Join(dir, "config.toml"), filepath.Join(dir, "cni/bin")
	plugin := filepath.Join(plugins, "other")
	is := func(when string, there bool) {
		t.Helper()
		if err := emptyPluginsOnce(configuration, plugins); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := os.Stat(plugin); (err == nil) != there {
			t.Errorf("%s: the plugin: %v; want it there: %t", when, err, there)
		}
	}
	write := func(file string) {
		t.Helper()
		if err := os.WriteFile(file, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	is("at the first start", false)
	write(plugin)
	is("at the next start", false)
	write(plugin)
	write(configuration)
	is("while the machine runs", true)
}

// TestHealthWaitsForTheConfiguration checks that a machine is not healthy after a change until the
// change is active.
func TestHealthWaitsForTheConfiguration(t *testing.T) {
	health := &api.HealthResponse{Healthy: true, Checks: []*api.HealthCheck{{Name: "configuration", Ok: true, Detail: "story"}, {Name: "etcd", Ok: true}}}
	notActive(health, []string{serviceKubeAPI})
	if c := health.Checks[0]; health.Healthy || c.Ok || c.Detail != "not active yet: "+serviceKubeAPI || !health.Checks[1].Ok {
		t.Errorf("%v", health)
	}
}

// TestServiceOf checks that a component is found in its service, and that a service is no component
// of itself.
func TestServiceOf(t *testing.T) {
	all := []supervise.Status{
		{Name: "containerd"},
		{Name: "orchestrator-node", Components: []supervise.Component{{Name: "kubelet"}, {Name: "orchestrator-node"}, {}}},
	}
	for name, want := range map[string]string{"kubelet": "orchestrator-node", "orchestrator-node": "", "containerd": "", "": "", "nginx": ""} {
		if got := serviceOf(all, name); got != want {
			t.Errorf("%q is a part of %q, want %q", name, got, want)
		}
	}
}

// TestHealthNamesProblems checks that a problem of a ready component is unhealthy, and is reported.
func TestHealthNamesProblems(t *testing.T) {
	services := []supervise.Status{{Name: serviceKubeAPI, State: supervise.Running, Components: []supervise.Component{
		{Name: "etcd", Ready: true, Detail: "serving"}, {Name: "extensions", Ready: true, Detail: "problem: APIService v1.example.org: it cannot be reached"},
	}}}
	health := clusterHealth(applied{config: &config.Config{Cluster: &config.Cluster{}}}, membershipState{}, services)
	for _, c := range health.Checks {
		switch want := c.Name != "extensions"; c.Name {
		case "etcd", "extensions":
			if c.Ok != want || c.Detail == "" {
				t.Errorf("%v", c)
			}
		}
	}
	if health.Healthy {
		t.Error("healthy")
	}
}
