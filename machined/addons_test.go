package main

import (
	"reflect"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestAddons: the orchestrator is told all that the reference's add-on says.
func TestAddons(t *testing.T) {
	c, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got := addons(c.Addons)
	manifest := c.Addons[0].Spec.Manifests[0].Reveal()
	want := []nodespec.Addon{{
		Name: "hello", Manifests: []string{manifest}, Namespace: "hello", Namespaces: []string{"hello"}, Kubernetes: "1.36",
		Rights: nodespec.AddonRights{Rules: []nodespec.PolicyRule{
			{APIGroups: []string{"", "rbac.authorization.k8s.io"}, Resources: []string{"configmaps", "roles"}, ResourceNames: []string{"greeting", "greeter"}, Verbs: []string{"get", "patch"}},
			{APIGroups: []string{"", "rbac.authorization.k8s.io"}, Resources: []string{"configmaps", "roles"}, Verbs: []string{"create"}},
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, NonResourceURLs: []string{}, Verbs: []string{"get"}},
		}},
	}}
	if !reflect.DeepEqual(got, want) || manifest == "" {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if none := addons(nil); none == nil || len(none) != 0 {
		t.Errorf("none: %v", none)
	}
}
