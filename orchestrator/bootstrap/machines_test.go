package bootstrap

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/machineapi"
)

// TestMachineObjectsAreRestored deletes each object that the system creates for machine objects. It
// checks that a pass restores all of them, and that a further pass writes nothing.
func TestMachineObjectsAreRestored(t *testing.T) {
	api, client := crdfake.NewClientset(), fake.NewClientset()
	all, err := managedMachines(api, client, "1.2.0", true)
	if err != nil {
		t.Fatal(err)
	}
	ensure := func() {
		t.Helper()
		for _, k := range all {
			if err := k.ensure(t.Context()); err != nil {
				t.Fatalf("%s: %v", k.text(), err)
			}
		}
	}
	ensure()
	for _, k := range all {
		if k.resource == definitionsResource {
			err = api.Tracker().Delete(k.resource, k.namespace, k.name)
		} else {
			err = client.Tracker().Delete(k.resource, k.namespace, k.name)
		}
		if err != nil {
			t.Errorf("%s: was not created: %v", k.text(), err)
		}
	}
	ensure()
	api.ClearActions()
	client.ClearActions()
	ensure()
	for _, a := range slices.Concat(api.Actions(), client.Actions()) {
		if a.GetVerb() != "get" {
			t.Errorf("a pass without a change: %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	if len(all) != 1+13+7 {
		t.Errorf("%d objects, want a namespace, 13 kinds and 7 objects of rights", len(all))
	}
}

// TestCorrectDefinition checks that a definition of another owner or of a newer version stays, and
// that another definition is corrected.
func TestCorrectDefinition(t *testing.T) {
	definition := func(by, group string) *apiextensionsv1.CustomResourceDefinition {
		d := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group}}
		if by != "" {
			d.Annotations = map[string]string{definedBy: by}
		}
		return d
	}
	for _, c := range []struct {
		name        string
		have        *apiextensionsv1.CustomResourceDefinition
		changed     bool
		group, then string
	}{
		{"equal", definition("1.2.0", "new"), false, "new", "1.2.0"},
		{"of an older version", definition("1.1.0", "old"), true, "new", "1.2.0"},
		{"of an older version, and equal", definition("1.1.0", "new"), false, "new", "1.1.0"},
		{"changed by a user", definition("1.2.0", "old"), true, "new", "1.2.0"},
		{"of a newer version", definition("1.10.0", "newer"), false, "newer", "1.10.0"},
		{"of another owner", definition("", "other"), false, "other", ""},
	} {
		changed := correctDefinition(c.have, definition("1.2.0", "new"))
		if changed != c.changed || c.have.Spec.Group != c.group || c.have.Annotations[definedBy] != c.then {
			t.Errorf("%s: changed %v, group %s of %s", c.name, changed, c.have.Spec.Group, c.have.Annotations[definedBy])
		}
	}
}

// TestMachineRights checks that nodes get no right to write other objects than the status of an
// OrlopMachine, and that all rights of the namespace are in roles of the namespace.
func TestMachineRights(t *testing.T) {
	reads := []string{"get", "list", "watch"}
	for _, o := range machineRights(true) {
		switch o := o.(type) {
		case *rbacv1.Role:
			if o.Namespace != machineapi.Namespace {
				t.Errorf("%s: is in %s", o.Name, o.Namespace)
			}
			if o.Name != roleMachineNodes {
				continue
			}
			for _, r := range o.Rules {
				writes := slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains(reads, v) })
				if slices.Contains(r.Resources, machineapi.OrlopHosts.Resource) {
					t.Errorf("nodes may %v the objects of waiting machines", r.Verbs)
				}
				if writes && !slices.Equal(r.Resources, []string{"orlopmachines/status"}) {
					t.Errorf("nodes may %v %v", r.Verbs, r.Resources)
				}
			}
		case *rbacv1.ClusterRole:
			for _, r := range o.Rules {
				if o.Name == roleMachines && (!slices.Equal(r.Resources, []string{"nodes"}) || !slices.Equal(r.Verbs, []string{"patch"})) {
					t.Errorf("the controllers may %v %v in the whole cluster", r.Verbs, r.Resources)
				}
			}
		}
	}
}
