package nodespec

import "testing"

func TestFindSuspendKind(t *testing.T) {
	for name, want := range map[string]string{
		"validatingwebhookconfiguration": "validatingwebhookconfiguration", "ValidatingWebhookConfigurations": "validatingwebhookconfiguration",
		"APIService": "apiservice", "crd": "customresourcedefinition", "CustomResourceDefinition": "customresourcedefinition",
		"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybinding",
		"FlowSchemas":                      "flowschema", "PriorityLevelConfiguration": "prioritylevelconfiguration",
		"validatingadmissionpolicies": "validatingadmissionpolicy", "MutatingAdmissionPolicy": "mutatingadmissionpolicy",
		"resourcequota": "", "pod": "", "": "",
	} {
		k, known := FindSuspendKind(name)
		if k.Name != want || known != (want != "") {
			t.Errorf("%q: %q, %t", name, k.Name, known)
		}
	}
}
