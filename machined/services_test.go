package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestEmptyPluginsOnce checks that no plugin of an external pod network from an earlier boot runs.
func TestEmptyPluginsOnce(t *testing.T) {
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
