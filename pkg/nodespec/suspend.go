package nodespec

import (
	"encoding/json"
	"strings"
)

// SuspendKind is a kind of object that an administrator can take out of the cluster while the API
// refuses requests, and put back later (docs/decisions/0055-suspend.md).
type SuspendKind struct {
	Name                     string // in lower case, as kubectl takes it
	Group, Version, Resource string
}

// DefinitionKind is the kind of which only the converter is taken out: the objects stay.
const DefinitionKind = "customresourcedefinition"

// SuspendKinds are all of them.
func SuspendKinds() []SuspendKind {
	const admission = "admissionregistration.k8s.io"
	return []SuspendKind{
		{"apiservice", "apiregistration.k8s.io", "v1", "apiservices"},
		{DefinitionKind, "apiextensions.k8s.io", "v1", "customresourcedefinitions"},
		{"mutatingadmissionpolicybinding", admission, "v1", "mutatingadmissionpolicybindings"},
		{"mutatingwebhookconfiguration", admission, "v1", "mutatingwebhookconfigurations"},
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

// What a SuspendRequest asks for.
const (
	SuspendRead    = "read"    // the object
	SuspendRemove  = "remove"  // the object, if it is still the one with UID
	SuspendRestore = "restore" // Object
)

// SuspendRequest is one step of suspending an object, or of restoring it. It carries the credentials:
// nobody else has them.
type SuspendRequest struct {
	Action    string          `json:"action"`
	Kind      string          `json:"kind"` // SuspendKind.Name
	Name      string          `json:"name"`
	UID       string          `json:"uid,omitempty"`
	Object    json.RawMessage `json:"object,omitempty"`
	Cert, Key []byte          // PEM: a client certificate of BreakGlassUser
}

// SuspendResult is the answer: the object as it was read, or as it is now.
type SuspendResult struct {
	UID    string          `json:"uid"`
	Object json.RawMessage `json:"object,omitempty"`
}
