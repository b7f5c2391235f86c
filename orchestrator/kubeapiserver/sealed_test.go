package kubeapiserver

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

const (
	sealedPolicyText = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'frozen'"}]
`
	sealedBindingText = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen.static.k8s.io}
spec: {policyName: frozen.static.k8s.io, validationActions: [Deny]}
`
)

// TestCheckSealed checks that upstream accepts the policy of the system and a policy of a site, and
// that checkSealed rejects each wrong policy with the reason.
func TestCheckSealed(t *testing.T) {
	for _, ok := range []config.SealedPolicies{
		{},
		{System: true},
		{Manifests: []string{sealedPolicyText, sealedBindingText}},
		{System: true, Manifests: []string{sealedPolicyText + "---\n" + sealedBindingText}},
	} {
		if err := checkSealed(ok); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"a name that does not exist", "object.metadata.name !=", "objekt.metadata.name !=", "undeclared reference to 'objekt'"},
		{"a syntax error", "!= 'frozen'\"", "!= \"", "Syntax error"},
		{"not a condition", "object.metadata.name != 'frozen'", "object.metadata.name + 'x'", "must evaluate to bool"},
		{"an unknown field", "validations:", "validation:", `unknown field "spec.validation"`},
		{"a field that occurs twice", "spec:\n", "spec: {}\nspec:\n", `key "spec" already set`},
		{"no validation", `[{expression: "object.metadata.name != 'frozen'"}]`, "[]", "must contain at least one item"},
		{"an old version", "k8s.io/v1\nkind: ValidatingAdmissionPolicy\n", "k8s.io/v1beta1\nkind: ValidatingAdmissionPolicy\n", "unsupported resource type"},
		{"parameters", "spec:\n", "spec:\n  paramKind: {apiVersion: v1, kind: ConfigMap}\n", "spec.paramKind is not supported for static manifests"},
		{"a name without the suffix", "name: frozen.static.k8s.io", "name: frozen", `must have a name ending with ".static.k8s.io"`},
		{"a policy without a binding", "policyName: frozen.static.k8s.io", "policyName: other.static.k8s.io", `references policy "other.static.k8s.io" which does not exist`},
		{"a binding without an action", "validationActions: [Deny]", "validationActions: []", "spec.validationActions: Required value"},
		{"a regular expression that does not compile", "object.metadata.name != 'frozen'", "object.metadata.name.matches('(')", "invalid matches argument"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(sealedPolicyText+"---\n"+sealedBindingText, c.old, c.new, 1)
			if !strings.Contains(sealedPolicyText+"---\n"+sealedBindingText, c.old) {
				t.Fatal("the test case does not change the manifests")
			}
			err := checkSealed(config.SealedPolicies{Manifests: []string{text}})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "/") && strings.Contains(err.Error(), sealedFile) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if err := checkSealed(config.SealedPolicies{Manifests: []string{sealedPolicyText}}); err == nil || !strings.Contains(err.Error(), "no binding names the policy frozen.static.k8s.io") {
		t.Errorf("a policy without a binding: %v", err)
	}
	spec := nodespec.Spec{Kubernetes: config.DefaultKubernetes()}
	spec.Kubernetes.SealedPolicies.Manifests = []string{sealedBindingText}
	if err := Check(spec); err == nil || !strings.HasPrefix(err.Error(), "sealedPolicies: binding ") {
		t.Errorf("a binding without its policy: %v", err)
	}
}

// TestSealedFlags checks that the flag for the feature gate is set only while a version is emulated
// in which the gate is off by default. Only the policy of the system enables the plugin
// SystemSubjects.
func TestSealedFlags(t *testing.T) {
	spec := nodespec.Spec{Kubernetes: config.DefaultKubernetes()}
	if got := sealedFlags(spec); got != nil {
		t.Errorf("without policies: %q", got)
	}
	spec.Kubernetes.SealedPolicies.System = true
	for emulated, want := range map[emulation.Minor][]string{
		{}:                    nil,
		{Major: 1, Minor: 37}: nil,
		{Major: 1, Minor: 36}: {"--feature-gates=ManifestBasedAdmissionControlConfig=true"},
	} {
		spec.Emulated = emulated
		if got := sealedFlags(spec); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", emulated, got, want)
		}
	}
	for _, system := range []bool{false, true} {
		spec.Kubernetes.SealedPolicies.System = system
		if got := slices.Contains(AdmissionPlugins(admissionFlags(spec.Kubernetes)), SystemSubjects); got != system {
			t.Errorf("policy of the system: %t; SystemSubjects is enabled: %t", system, got)
		}
	}
}

// TestExemptAccounts checks which accounts have requests that skip policies, and that the policy of
// the system protects the credentials of each of these accounts.
func TestExemptAccounts(t *testing.T) {
	want := sets.New("endpoint-controller", "endpointslice-controller", "node-controller", "orlop-node-taints", "orlop-pod-certificates", "root-ca-cert-publisher", "service-account-controller")
	if got := exemptAccounts(); !got.Equal(want) {
		t.Errorf("%v, want %v", sets.List(got), sets.List(want))
	}
	for account := range want {
		if !strings.Contains(systemPolicies(), "'"+account+"'") {
			t.Errorf("the policy of the system does not name account %s", account)
		}
	}
}
