package kubeapiserver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"
)

// TestReservedNamespaces checks that names with prefix orlop- are reserved for add-ons, for every
// user.
func TestReservedNamespaces(t *testing.T) {
	root := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	named := func(name string) *core.Namespace { return &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	all := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	for _, c := range []struct {
		what     string
		who      user.Info
		how      admission.Operation
		resource schema.GroupVersionResource
		object   runtime.Object
		name     string
		ok       bool
	}{
		{"an admin's", root, admission.Create, all, named("shop"), "shop", true},
		{"an admin's that is called like the system", root, admission.Create, all, named("orlop"), "orlop", true},
		{"an admin's with a name of add-ons", root, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"such a name, made by the server", root, admission.Create, all, &core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "orlop-"}}, "", false},
		{"nobody's", nil, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"an add-on's, for its scope", &user.DefaultInfo{Name: "orlop:addons"}, admission.Create, all, named("orlop-shop"), "orlop-shop", true},
		{"the system's, of machines", &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, admission.Create, all, named("orlop-machines"), "orlop-machines", true},
		{"an admin's, of machines", root, admission.Create, all, named("orlop-machines"), "orlop-machines", false},
		{"the system's, of an add-on", &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"an add-on's own", &user.DefaultInfo{Name: "system:serviceaccount:orlop-addons:shop", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:orlop-addons"}}, admission.Create, all, named("orlop-shop"), "orlop-shop", true},
		{"another account's", &user.DefaultInfo{Name: "system:serviceaccount:shop:orlop-addons", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop"}}, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"an add-on's that is left", root, admission.Delete, all, nil, "orlop-shop", true},
		{"what is known about add-ons", root, admission.Delete, all, nil, "orlop-addons", false},
		{"something else of the name", root, admission.Create, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orlop-shop"}}, "orlop-shop", true},
	} {
		a := admission.NewAttributesRecord(c.object, nil, schema.GroupVersionKind{}, c.name, c.name, c.resource, "", c.how, nil, false, c.who)
		if err := (reservedNamespaces{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
