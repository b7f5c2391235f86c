package converge

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUnusedResolvers checks that resolvers that pods do not use are reported once.
func TestUnusedResolvers(t *testing.T) {
	var events []string
	r := New(Deps{Event: func(_, _, message string) { events = append(events, message) }})
	for range 3 {
		r.reportUnusedResolvers([]string{"a", "b"})
	}
	if len(events) != 2 {
		t.Errorf("events: %v", events)
	}
}

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
