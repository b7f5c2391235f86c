package config

import (
	"fmt"
	"strings"
	"time"
)

// Addon is the document of an add-on: objects that the control plane applies to the cluster, and
// the permissions for that. There can be several, each with its own name.
type Addon struct {
	// Metadata names the add-on. The name is a DNS label and unique among the add-ons.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec describes the add-on.
	Spec AddonSpec `yaml:"spec" jsonschema:"required"`
}

// AddonSpec describes an add-on. It must be the same on every control-plane machine of the cluster:
// the elected leader of the controllers applies its own copy.
type AddonSpec struct {
	// Manifests are the objects of the add-on: texts of one or more YAML documents, in the format
	// of `helm template` or `kustomize build`. They can contain Secrets, so they are never shown.
	// An add-on has manifests, an artifact, or both.
	Manifests []Manifest `yaml:"manifests,omitempty"`
	// Artifact is an OCI artifact with more manifests: YAML or JSON files, each as a layer, or in
	// tar archives with or without gzip. It comes from images imported by `orlopctl image import`,
	// otherwise from registries.
	Artifact Artifact `yaml:"artifact,omitempty"`
	// Registries are the registries and mirrors from which the machine fetches an artifact that was
	// not imported, in this order. Without registries, the machine never fetches.
	Registries []AddonRegistry `yaml:"registries,omitempty"`
	// Namespace is the namespace of objects that do not specify one. It is created if missing.
	Namespace string `yaml:"namespace,omitempty"`
	// Scope limits the namespaces of the add-on.
	Scope AddonScope `yaml:"scope" jsonschema:"required"`
	// Rights are all permissions of the add-on. Its objects are applied with these permissions
	// only, and no role among its objects can grant more.
	Rights AddonRights `yaml:"rights" jsonschema:"required"`
	// HealthyWithin is the time in which all objects must become healthy, and stay so for a minute,
	// after the manifests changed. After that, the last healthy manifests are applied again, and
	// the state of the add-on reports it; no object is pruned before. With 0s, there is no
	// rollback, and objects are pruned at once. Time without an API server does not count, and the
	// first manifests have no limit.
	HealthyWithin Duration `yaml:"healthyWithin"`
	// Requires lists requirements for the cluster. If the cluster does not meet them, no object of
	// the add-on is applied.
	Requires AddonRequires `yaml:"requires"`
}

func (a *Addon) defaults() { a.Spec.HealthyWithin = Duration(10 * time.Minute) }

// AddonRegistry is a registry with the artifact of an add-on. The machine verifies the artifact by
// its digest.
type AddonRegistry struct {
	// Address is the registry, with an optional port; for a mirror with a path prefix, the path
	// follows.
	Address RegistryPath `yaml:"address" jsonschema:"required"`
	// CA is the CA of the registry's certificate, in PEM. No other CA is trusted for it.
	CA Bundle `yaml:"ca,omitempty"`
	// PlainHTTP disables TLS.
	PlainHTTP bool `yaml:"plainHTTP"`
	// Username is the user at the registry; access is anonymous without it.
	Username string `yaml:"username,omitempty"`
	// Password is the user's password, or a token.
	Password Secret `yaml:"password,omitempty"`
}

// AddonScope limits an add-on to namespaces, or permits the whole cluster.
type AddonScope struct {
	// Namespaces are the permitted namespaces; they are created if missing. Objects in other
	// namespaces and cluster-scoped objects are rejected. Only add-ons can create namespaces with
	// the prefix orlop-.
	Namespaces []string `yaml:"namespaces,omitempty"`
	// Cluster permits objects in every namespace, and cluster-scoped objects.
	Cluster bool `yaml:"cluster"`
}

// AddonRights are the permissions of an add-on, which the API server enforces.
type AddonRights struct {
	// Rules are rules of a Role or a ClusterRole (rbac.authorization.k8s.io/v1, PolicyRule), for
	// the namespaces of the scope or for the whole cluster.
	Rules []PolicyRule `yaml:"rules,omitempty"`
	// NamespaceAdmin grants the ClusterRole admin of Kubernetes in the namespaces of the scope.
	NamespaceAdmin bool `yaml:"namespaceAdmin"`
	// ClusterAdmin grants the ClusterRole cluster-admin of Kubernetes: all permissions.
	ClusterAdmin bool `yaml:"clusterAdmin"`
}

// PolicyRule permits verbs on resources or paths.
type PolicyRule struct {
	// APIGroups are the API groups of the resources; "" is the core group.
	APIGroups []APIGroup `yaml:"apiGroups,omitempty"`
	// Resources are resource names, for example deployments or pods/log.
	Resources []string `yaml:"resources,omitempty"`
	// ResourceNames restricts the rule to objects with these names.
	ResourceNames []string `yaml:"resourceNames,omitempty"`
	// NonResourceURLs are paths of the API server, in place of resources; only with cluster scope.
	NonResourceURLs []string `yaml:"nonResourceURLs,omitempty"`
	// Verbs are the permitted verbs. Applying an object requires get, create and patch; deleting it
	// requires no permission.
	Verbs []string `yaml:"verbs" jsonschema:"required"`
}

// AddonRequires lists requirements for the cluster.
type AddonRequires struct {
	// Kubernetes is the minimum version of the API server, as ">=1.36" or ">=1.36.2".
	Kubernetes AtLeast `yaml:"kubernetes,omitempty"`
}

// APIGroup is an API group. The core group has the empty name, but is not the zero value.
type APIGroup struct {
	name  string
	given bool
}

// UnmarshalText accepts any name.
func (g *APIGroup) UnmarshalText(text []byte) error {
	*g = APIGroup{string(text), true}
	return nil
}

// String returns the name.
func (g APIGroup) String() string { return g.name }

// MarshalText returns String.
func (g APIGroup) MarshalText() ([]byte, error) { return []byte(g.name), nil }

// Manifest is a text with objects of an add-on. It can contain Secrets, so it is printed like a
// secret.
type Manifest struct{ Secret }

// AtLeast is a minimum version. The zero value permits all versions.
type AtLeast struct{ version string }

const wantAtLeast = `a minimum version, such as ">=1.36"`

// UnmarshalText parses ">=" and a version of two or three numbers.
func (a *AtLeast) UnmarshalText(text []byte) error {
	version, least := strings.CutPrefix(string(text), ">=")
	version = strings.TrimLeft(version, " ")
	if !least || !isVersion(version) {
		w := &wrong{reason: fmt.Sprintf("%s is not a minimum version", quote(string(text))), expected: wantAtLeast}
		if bare := strings.TrimLeft(string(text), "v>=^~ "); isVersion(bare) {
			w.nearest = ">=" + bare
		}
		return w
	}
	a.version = version
	return nil
}

// isVersion reports whether a text consists of two or three numbers separated by dots.
func isVersion(s string) bool {
	numbers := strings.Split(s, ".")
	for _, n := range numbers {
		if len(n) < 1 || len(n) > 5 || strings.Trim(n, "0123456789") != "" {
			return false
		}
	}
	return len(numbers) == 2 || len(numbers) == 3
}

// String returns ">=" and the version; "" for the zero value.
func (a AtLeast) String() string {
	if a.version == "" {
		return ""
	}
	return ">=" + a.version
}

// MarshalText returns String.
func (a AtLeast) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Version returns the minimum version, such as "1.36"; "" for the zero value.
func (a AtLeast) Version() string { return a.version }

// DefaultNamespace returns the namespace of objects that do not specify one.
func (s AddonSpec) DefaultNamespace() string {
	switch {
	case s.Namespace != "":
		return s.Namespace
	case len(s.Scope.Namespaces) > 0:
		return s.Scope.Namespaces[0]
	}
	return "default"
}

// addonPath returns the path of an add-on's document, as in Problem.Field.
func addonPath(name string) string { return `Addon["` + shorten(name) + `"]` }
