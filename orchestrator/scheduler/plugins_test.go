package scheduler

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestPlugins checks which plugins and extenders Plugins finds in two configuration files: the file
// that the component writes, and a file with a disabled plugin and an extender.
func TestPlugins(t *testing.T) {
	at := dirs.In(t.TempDir())
	if err := os.MkdirAll(at.Controllers, 0o700); err != nil {
		t.Fatal(err)
	}
	c := Component(nodespec.Spec{}, at)
	if err := c.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	profiles, extenders, err := Plugins(ConfigFile(at))
	if err != nil || len(profiles) != 1 || len(extenders) != 0 {
		t.Fatalf("%v, %q, %v", profiles, extenders, err)
	}
	has := func(name string, weight int32) bool {
		return slices.Contains(profiles[0].Plugins, Plugin{name, weight})
	}
	if profiles[0].Name != "default-scheduler" || !has("TaintToleration", 3) || !has("DefaultBinder", 0) || !has("PrioritySort", 0) {
		t.Errorf("%+v", profiles)
	}
	other := filepath.Join(t.TempDir(), "other.yaml")
	text := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: other
  plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}
extenders:
- urlPrefix: https://extender.example.com
  filterVerb: filter
`
	if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	profiles, extenders, err = Plugins(other)
	if err != nil || len(profiles) != 1 || profiles[0].Name != "other" || has("ImageLocality", 1) || !slices.Equal(extenders, []string{"https://extender.example.com"}) {
		t.Errorf("%+v, %q, %v", profiles, extenders, err)
	}
	if _, _, err := Plugins(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("Plugins returns no error for a missing file")
	}
}
