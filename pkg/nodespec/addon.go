package nodespec

import "time"

// Addon is a set of objects that the control plane reconciles in the cluster, with the rights that
// the reconciliation needs. The file Addons holds all add-ons. The file is separate from the Spec,
// because add-ons may change while the components run.
type Addon struct {
	Name      string   `json:"name"`      // a DNS label, unique among the add-ons
	Manifests []string `json:"manifests"` // YAML documents; they may contain Secrets
	Artifact  Artifact `json:"artifact"`  // source of further manifests; zero for none
	Namespace string   `json:"namespace"` // for objects that name no namespace
	// namespaces in which its objects may be; empty for the whole cluster
	Namespaces []string    `json:"namespaces"`
	Rights     AddonRights `json:"rights"`
	// minimum version of Kubernetes, for example 1.36; empty for any version
	Kubernetes string `json:"kubernetes"`
	// Within is the time in which changed manifests must become healthy. After this time, the
	// controllers roll an unhealthy add-on back. 0 disables the rollback.
	Within time.Duration `json:"within"`
}

// Artifact is an OCI artifact with manifests. machined stores the artifact in a directory for the
// controllers (pkg/artifact.Store). The zero value means no artifact.
type Artifact struct {
	Name   string `json:"name,omitempty"`   // registry.example.com/team/ingress@sha256:…
	SHA256 string `json:"sha256,omitempty"` // digest of its manifest
	// reason and remedy if the artifact is not on this machine; empty if it is there
	Missing string `json:"missing,omitempty"`
}

// AddonRights are the rights of an add-on: rules, and a built-in role of Kubernetes.
type AddonRights struct {
	Rules          []PolicyRule `json:"rules,omitempty"`
	NamespaceAdmin bool         `json:"namespaceAdmin,omitempty"` // the role admin in Namespaces
	ClusterAdmin   bool         `json:"clusterAdmin,omitempty"`   // the role cluster-admin
}

// PolicyRule is a PolicyRule of rbac.authorization.k8s.io/v1.
type PolicyRule struct {
	APIGroups       []string `json:"apiGroups,omitempty"`
	Resources       []string `json:"resources,omitempty"`
	ResourceNames   []string `json:"resourceNames,omitempty"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
	Verbs           []string `json:"verbs"`
}
