package config

import (
	"fmt"
	"strings"
)

// SealedPolicies are admission policies that the API server reads from its files: no client of the
// Kubernetes API sees, changes or removes them (docs/decisions/0118-sealed-policies.md).
type SealedPolicies struct {
	// System enables the built-in policy that protects the objects and identities of the system.
	System bool `yaml:"system"`
	// Manifests are texts of YAML documents, with policies and their bindings.
	Manifests []string `yaml:"manifests,omitempty"`
}

// IsZero reports whether no sealed policies are configured.
func (s SealedPolicies) IsZero() bool { return !s.System && len(s.Manifests) == 0 }

// SealedPoliciesGate is the feature gate of sealed policies. It is disabled by default before
// Kubernetes 1.37.
const SealedPoliciesGate = "ManifestBasedAdmissionControlConfig"

// The suffixes of the names of sealed policies and bindings. Kubernetes reserves sealedSuffix for
// objects from files (k8s.io/apiserver/pkg/admission/plugin/manifest).
const (
	sealedSuffix = ".static.k8s.io"
	systemSuffix = ".orlop" + sealedSuffix
)

// Limits of sealed policies. The API server evaluates the policies for each request that they
// match, and holds their compiled expressions in memory.
const (
	maxSealedObjects = 64
	maxSealedBytes   = 128 << 10
)

// unsealableKinds maps the kinds of admission objects that cannot be sealed to the reasons.
var unsealableKinds = map[string]string{
	"MutatingAdmissionPolicy":        "could change the system's own objects",
	"MutatingAdmissionPolicyBinding": "could change the system's own objects",
	"MutatingWebhookConfiguration":   "would reject requests while its service does not answer, and no client could remove it",
	"ValidatingWebhookConfiguration": "would reject requests while its service does not answer, and no client could remove it",
}

// sealedPolicies validates the number, size, kinds and names of the objects. The orchestrator
// validates their content with the code of Kubernetes.
func (v clusterValidator) sealedPolicies(path string, k *Kubernetes) {
	s := k.SealedPolicies
	for i, name := range k.APIServer.Admission.Disabled {
		if name == "ValidatingAdmissionPolicy" && !s.IsZero() {
			v.on(fmt.Sprintf("Cluster.spec.kubernetes.apiServer.admission.disabled[%d]", i), wrong{
				reason: "without the plugin ValidatingAdmissionPolicy, the sealed policies have no effect", hint: "omit it, or remove the sealed policies",
			})
		}
	}
	count, size, owners := 0, 0, map[manifestObject]string{}
	for i, text := range s.Manifests {
		at := fmt.Sprintf("%s.manifests[%d]", path, i)
		objects, err := manifestObjects(text)
		switch {
		case err != nil:
			v.on(at, wrong{reason: err.Error(), expected: "policies and bindings, each with apiVersion, kind and metadata.name"})
		case len(objects) == 0:
			v.on(at, wrong{reason: "contains no object", expected: "policies and bindings as one text of YAML documents"})
		}
		for _, o := range objects {
			v.sealedObject(at, o)
			if owner, twice := owners[o]; twice {
				v.on(at, wrong{reason: fmt.Sprintf("%s is also in %s", o, owner), expected: "each object once"})
			}
			owners[o] = at
		}
		count, size = count+len(objects), size+len(text)
	}
	if count > maxSealedObjects {
		v.on(path+".manifests", wrong{reason: fmt.Sprintf("%d objects", count), expected: fmt.Sprintf("at most %d", maxSealedObjects)})
	}
	if size > maxSealedBytes {
		v.on(path+".manifests", wrong{reason: Bytes(size).String() + " of text", expected: "at most " + Bytes(maxSealedBytes).String()})
	}
}

// sealedObject checks the kind and the name of an object.
func (v clusterValidator) sealedObject(at string, o manifestObject) {
	const kinds = "ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding of admissionregistration.k8s.io/v1"
	admission := o.group == "admissionregistration.k8s.io"
	switch reason := unsealableKinds[o.kind]; {
	case admission && reason != "":
		v.on(at, wrong{reason: fmt.Sprintf("%s %s cannot be sealed: it %s", o.kind, shorten(o.name), reason), expected: kinds})
	case !admission || o.kind != "ValidatingAdmissionPolicy" && o.kind != "ValidatingAdmissionPolicyBinding":
		v.on(at, wrong{reason: fmt.Sprintf("%s %s is not a policy", o.kind, shorten(o.name)), expected: kinds, hint: "put other objects into a document of kind Addon"})
	case o.namespace != "":
		v.on(at, wrong{reason: fmt.Sprintf("%s %s has a namespace", o.kind, shorten(o.name)), hint: "omit metadata.namespace"})
	case strings.HasSuffix(o.name, systemSuffix):
		v.on(at, wrong{reason: fmt.Sprintf("%s: names that end with %s are the system's own", quote(o.name), systemSuffix), expected: "a name such as no-host-paths" + sealedSuffix})
	case !strings.HasSuffix(o.name, sealedSuffix) || hostname(o.name) != nil:
		v.on(at, wrong{reason: quote(o.name) + " is not a name of a sealed object", expected: "a DNS name in lower case that ends with " + sealedSuffix + ", such as no-host-paths" + sealedSuffix})
	}
}
