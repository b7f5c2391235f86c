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

// TestReservedNamespaces checks that only add-ons can create namespaces with the prefix orlop-; for
// every other user these names are reserved. Only the system can create the namespace of machines.
func TestReservedNamespaces(t *testing.T) {
	root := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	named := func(name string) *core.Namespace { return &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	all := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	for _, c := range []struct {
		title     string
		caller    user.Info
		operation admission.Operation
		resource  schema.GroupVersionResource
		object    runtime.Object
		name      string
		ok        bool
	}{
		{"an admin creates another name", root, admission.Create, all, named("shop"), "shop", true},
		{"an admin creates orlop, which lacks the hyphen", root, admission.Create, all, named("orlop"), "orlop", true},
		{"an admin creates a reserved name", root, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"an admin creates a generated reserved name", root, admission.Create, all, &core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "orlop-"}}, "", false},
		{"a request without a user", nil, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"the controller of add-ons creates a reserved name", &user.DefaultInfo{Name: "orlop:addons"}, admission.Create, all, named("orlop-shop"), "orlop-shop", true},
		{"the system creates the namespace of machines", &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, admission.Create, all, named("orlop-machines"), "orlop-machines", true},
		{"an admin creates the namespace of machines", root, admission.Create, all, named("orlop-machines"), "orlop-machines", false},
		{"the system creates another reserved name", &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"the account of an add-on creates a reserved name", &user.DefaultInfo{Name: "system:serviceaccount:orlop-addons:shop", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:orlop-addons"}}, admission.Create, all, named("orlop-shop"), "orlop-shop", true},
		{"another account creates a reserved name", &user.DefaultInfo{Name: "system:serviceaccount:shop:orlop-addons", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop"}}, admission.Create, all, named("orlop-shop"), "orlop-shop", false},
		{"an admin deletes the namespace of an add-on", root, admission.Delete, all, nil, "orlop-shop", true},
		{"an admin deletes orlop-addons", root, admission.Delete, all, nil, "orlop-addons", false},
		{"an admin creates a ConfigMap with a reserved name", root, admission.Create, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orlop-shop"}}, "orlop-shop", true},
	} {
		a := admission.NewAttributesRecord(c.object, nil, schema.GroupVersionKind{}, c.name, c.name, c.resource, "", c.operation, nil, false, c.caller)
		if err := (reservedNamespaces{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}
