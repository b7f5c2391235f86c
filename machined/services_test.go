package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/orlop-os/orlop/pkg/supervise"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// TestGolden shows every process of a machine with all that it is started with, and containerd's configuration.
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
		"services-unconfigured.json": show([]supervise.Service{door()}),
		"services-controlplane.json": show(append([]supervise.Service{door()}, kubernetes(true)...)),
		"services-worker.json":       show(append([]supervise.Service{door()}, kubernetes(false)...)),
		"containerd.toml":            containerdConfig("registry.example/pause:1"),
	} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs; look at the change, then run the test with -update:\n%s", path, got)
		}
	}
}
