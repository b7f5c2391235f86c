package nodespec

import "time"

// Addon is a set of objects that the control plane reconciles in the cluster, with the rights for
// that. The file Addons holds all add-ons, beside the Spec, because they may change while the
// components run.
type Addon struct {
	Name      string   `json:"name"`      // a DNS label, unique among the add-ons
	Manifests []string `json:"manifests"` // YAML documents; they may contain Secrets
	Artifact  Artifact `json:"artifact"`  // further manifests
	Namespace string   `json:"namespace"` // for objects without a namespace
	// the only namespaces of its objects; empty: the whole cluster
	Namespaces []string    `json:"namespaces"`
	Rights     AddonRights `json:"rights"`
	// minimum Kubernetes version, such as 1.36; empty: any
	Kubernetes string `json:"kubernetes"`
	// Within is the time in which changed manifests must become healthy before the add-on is rolled
	// back; 0: no rollback.
	Within time.Duration `json:"within"`
}

// Artifact is an OCI artifact with manifests, which machined stores in a directory for the
// controllers (pkg/artifact.Store). The zero value is no artifact.
type Artifact struct {
	Name   string `json:"name,omitempty"`   // registry.example.com/team/ingress@sha256:…
	SHA256 string `json:"sha256,omitempty"` // of its manifest
	// why it is not on this machine, and the remedy; empty if it is
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
