package nodeplan

import (
	"reflect"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestNodeLabels checks that the orchestrator gets the labels and taints of the reference
// configuration, and the LLDP labels that this configuration names.
func TestNodeLabels(t *testing.T) {
	c, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := nodespec.NodeLabels{
		Labels: map[string]string{"topology.kubernetes.io/region": "north", "topology.kubernetes.io/zone": "north-1", "example.com/rack": "17"},
		Taints: []nodespec.Taint{{Key: "example.com/dedicated", Value: "storage", Effect: "NoSchedule"}},
	}
	if got := nodeLabels(c.Machine.Spec.Node, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	want.Labels["example.com/switch"] = "leaf7"
	if got := nodeLabels(c.Machine.Spec.Node, map[string]string{"example.com/switch": "leaf7", "example.com/gone": "x"}); !reflect.DeepEqual(got, want) {
		t.Errorf("with the labels of an LLDP neighbor: got %+v\nwant %+v", got, want)
	}
	if c.Machine.Spec.Node.Labels["example.com/switch"] != "" {
		t.Error("the plan has changed the configuration")
	}
}

// TestAddons checks that the orchestrator gets all fields of the add-on in the reference
// configuration.
func TestAddons(t *testing.T) {
	c, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	const artifact = "registry.example.com/team/hello@sha256:4f5d2e0c1b7a69885746352413021ffeeddccbbaa99887766554433221100ffe"
	got := addons(c.Addons, nil)
	manifest := c.Addons[0].Spec.Manifests[0].Reveal()
	want := []nodespec.Addon{{
		Name: "hello", Manifests: []string{manifest},
		Artifact:  nodespec.Artifact{Name: artifact, SHA256: artifact[len(artifact)-64:], Missing: artifact + " is being searched"},
		Namespace: "hello", Namespaces: []string{"hello"}, Kubernetes: "1.36", Within: 15 * time.Minute,
		Rights: nodespec.AddonRights{Rules: []nodespec.PolicyRule{
			{APIGroups: []string{"", "rbac.authorization.k8s.io"}, Resources: []string{"configmaps", "roles"}, ResourceNames: []string{"greeting", "greeter"}, Verbs: []string{"get", "patch"}},
			{APIGroups: []string{"", "rbac.authorization.k8s.io"}, Resources: []string{"configmaps", "roles"}, Verbs: []string{"create"}},
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, NonResourceURLs: []string{}, Verbs: []string{"get"}},
		}},
	}}
	if !reflect.DeepEqual(got, want) || manifest == "" {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, missing := range []string{"", "it was not imported"} {
		if got := addons(c.Addons, map[string]string{artifact[len(artifact)-64:]: missing}); got[0].Artifact.Missing != missing {
			t.Errorf("the reason for a missing artifact is not the given one: %+v", got[0].Artifact)
		}
	}
	if none := addons(nil, nil); none == nil || len(none) != 0 {
		t.Errorf("without add-ons: %v, want an empty list that is not nil", none)
	}
}
