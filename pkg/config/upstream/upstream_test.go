package upstream

import (
	"slices"
	"testing"
)

// TestTables checks some entries of each table. TestUpstreamTables of the orchestrator compares the
// tables with Kubernetes.
func TestTables(t *testing.T) {
	gates := Gates()
	for name, gate := range gates {
		for _, other := range gate.Requires {
			if _, known := gates[other]; !known {
				t.Errorf("%s requires %s, which is no gate", name, other)
			}
		}
	}
	if g := gates["GracefulNodeShutdownBasedOnPodPriority"]; !g.Default || g.Locked || !slices.Equal(g.Requires, []string{"GracefulNodeShutdown"}) {
		t.Errorf("GracefulNodeShutdownBasedOnPodPriority is %+v", g)
	}
	if g := gates["KMSv1"]; g.Default || g.Locked {
		t.Errorf("KMSv1 is %+v", g)
	}
	if g := gates["GitRepoVolumeDriver"]; g.Default || !g.Locked {
		t.Errorf("GitRepoVolumeDriver is %+v", g)
	}
	plugins := AdmissionPlugins()
	if on, known := plugins["EventRateLimit"]; on || !known || !plugins["ServiceAccount"] {
		t.Errorf("the admission plugins are %v", plugins)
	}
	versions := APIVersions()
	if on, known := versions["resource.k8s.io/v1beta1"]; on || !known || !versions["v1"] {
		t.Errorf("the API versions are %v", versions)
	}
	if names := ScorePlugins(); !slices.Contains(names, "NodeResourcesFit") {
		t.Errorf("the score plugins are %q", names)
	}
	if names := Names(plugins); !slices.IsSorted(names) || len(names) != len(plugins) {
		t.Errorf("the names are %q", names)
	}
}
