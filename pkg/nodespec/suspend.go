package nodespec

import (
	"encoding/json"
	"strings"
)

// SuspendKind is a kind of object that an admin can suspend if it blocks the API, and resume later
// (docs/decisions/0055-suspend.md).
type SuspendKind struct {
	Name                     string // singular, in lower case
	Group, Version, Resource string
}

// DefinitionKind is the kind CustomResourceDefinition. Only the conversion webhook of such an
// object is suspended. The definition and its objects stay.
const DefinitionKind = "customresourcedefinition"

// SuspendKinds returns all kinds that can be suspended.
func SuspendKinds() []SuspendKind {
	const admission, flows = "admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io"
	return []SuspendKind{
		{"apiservice", "apiregistration.k8s.io", "v1", "apiservices"},
		{DefinitionKind, "apiextensions.k8s.io", "v1", "customresourcedefinitions"},
		{"flowschema", flows, "v1", "flowschemas"},
		{"mutatingadmissionpolicy", admission, "v1", "mutatingadmissionpolicies"},
		{"mutatingadmissionpolicybinding", admission, "v1", "mutatingadmissionpolicybindings"},
		{"mutatingwebhookconfiguration", admission, "v1", "mutatingwebhookconfigurations"},
		{"prioritylevelconfiguration", flows, "v1", "prioritylevelconfigurations"},
		{"validatingadmissionpolicy", admission, "v1", "validatingadmissionpolicies"},
		{"validatingadmissionpolicybinding", admission, "v1", "validatingadmissionpolicybindings"},
		{"validatingwebhookconfiguration", admission, "v1", "validatingwebhookconfigurations"},
	}
}

// FindSuspendKind returns the kind with a name: singular, plural or crd, in any case. It returns
// false for an unknown name.
func FindSuspendKind(name string) (SuspendKind, bool) {
	name = strings.ToLower(name)
	if name == "crd" || name == "crds" {
		name = DefinitionKind
	}
	for _, k := range SuspendKinds() {
		if name == k.Name || name == k.Resource {
			return k, true
		}
	}
	return SuspendKind{}, false
}

// Actions of a SuspendRequest.
const (
	SuspendRead    = "read"    // read the object
	SuspendRemove  = "remove"  // delete the object if it still has UID
	SuspendRestore = "restore" // create Object
)

// SuspendRequest is a step of the suspension or resumption of an object. It contains the
// credentials, because the process has no others.
type SuspendRequest struct {
	Action    string          `json:"action"`
	Kind      string          `json:"kind"` // SuspendKind.Name
	Name      string          `json:"name"`
	UID       string          `json:"uid,omitempty"`
	Object    json.RawMessage `json:"object,omitempty"`
	Cert, Key []byte          // PEM: a client certificate of BreakGlassUser
}

// SuspendResult is the output of a step: the object that was read, or its state after the step.
type SuspendResult struct {
	UID    string          `json:"uid"`
	Object json.RawMessage `json:"object,omitempty"`
}
