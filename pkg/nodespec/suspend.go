package nodespec

import (
	"encoding/json"
	"strings"
)

// SuspendKind is a kind of object that an admin can suspend while the API rejects requests, and
// resume later (docs/decisions/0055-suspend.md).
type SuspendKind struct {
	Name                     string // in lower case, like in kubectl
	Group, Version, Resource string
}

// DefinitionKind is the kind for which only the conversion webhook is suspended: the objects stay.
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

// FindSuspendKind finds a kind by its name, singular or plural, in any case, or by kubectl's short
// name.
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

// SuspendRequest is one step of suspending or resuming an object. It contains the credentials,
// because no other process has them.
type SuspendRequest struct {
	Action    string          `json:"action"`
	Kind      string          `json:"kind"` // SuspendKind.Name
	Name      string          `json:"name"`
	UID       string          `json:"uid,omitempty"`
	Object    json.RawMessage `json:"object,omitempty"`
	Cert, Key []byte          // PEM: a client certificate of BreakGlassUser
}

// SuspendResult is the answer: the object that was read, or its present state.
type SuspendResult struct {
	UID    string          `json:"uid"`
	Object json.RawMessage `json:"object,omitempty"`
}
