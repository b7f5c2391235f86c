package nodespec

import "time"

// Addon is objects that the control plane keeps in the cluster, and the rights with which it does.
// The file Addons holds them, beside the Spec: what is in it may change while the components run.
type Addon struct {
	Name      string   `json:"name"`      // a DNS label, which no other add-on has
	Manifests []string `json:"manifests"` // YAML documents; they may be Secrets
	Artifact  Artifact `json:"artifact"`  // more of them
	Namespace string   `json:"namespace"` // of objects that name none
	// the only ones that it has objects in; empty: the whole cluster
	Namespaces []string    `json:"namespaces"`
	Rights     AddonRights `json:"rights"`
	// the least version that it needs, such as 1.36; empty: any
	Kubernetes string `json:"kubernetes"`
	// Within is the time that changed manifests have to become healthy, before those from before
	// are wanted again; 0: they are not.
	Within time.Duration `json:"within"`
}

// Artifact is an OCI artefact with manifests, which machined brings into a folder that the
// controllers read (pkg/artifact.Store). The zero value is none.
type Artifact struct {
	Name   string `json:"name,omitempty"`   // registry.example.com/team/ingress@sha256:…
	SHA256 string `json:"sha256,omitempty"` // of its manifest
	// why it is not on this machine, and what to do; empty: it is
	Missing string `json:"missing,omitempty"`
}

// AddonRights are what an add-on may do: the rules, and one of Kubernetes' own roles.
type AddonRights struct {
	Rules          []PolicyRule `json:"rules,omitempty"`
	NamespaceAdmin bool         `json:"namespaceAdmin,omitempty"` // the role admin in Namespaces
	ClusterAdmin   bool         `json:"clusterAdmin,omitempty"`   // the role cluster-admin
}

// PolicyRule is one of rbac.authorization.k8s.io/v1.
type PolicyRule struct {
	APIGroups       []string `json:"apiGroups,omitempty"`
	Resources       []string `json:"resources,omitempty"`
	ResourceNames   []string `json:"resourceNames,omitempty"`
	NonResourceURLs []string `json:"nonResourceURLs,omitempty"`
	Verbs           []string `json:"verbs"`
}
