package config

import (
	"fmt"
	"strings"
	"time"
)

// Addon is the document of one add-on: objects that the control plane keeps in the cluster, and the
// rights with which it does. There may be several, each with a name of its own.
type Addon struct {
	// Metadata names the add-on. The name is a DNS label, which no other add-on has.
	Metadata Metadata `yaml:"metadata" jsonschema:"required"`
	// Spec says what the add-on is.
	Spec AddonSpec `yaml:"spec" jsonschema:"required"`
}

// AddonSpec says what an add-on is. It is the same on every control-plane machine of the cluster:
// the one whose controllers work applies its own.
type AddonSpec struct {
	// Manifests are the add-on's objects: texts of one or more YAML documents, as `helm template`
	// or `kustomize build` print them. They may hold Secrets, so they are shown to nobody. There
	// are manifests, or an artifact, or both.
	Manifests []Manifest `yaml:"manifests,omitempty"`
	// Artifact is an OCI artefact with more such texts: files of YAML or JSON, each a layer by
	// itself, or in layers that are tar archives, plain or compressed by gzip. It comes from what
	// was brought to the machine with `orlopctl image import`, else from registries.
	Artifact Artifact `yaml:"artifact,omitempty"`
	// Registries are where the artefact is fetched from when nobody has brought it, asked in this
	// order: the one that it names, and mirrors. Without any, no registry is ever asked.
	Registries []AddonRegistry `yaml:"registries,omitempty"`
	// Namespace is where objects go that name none. It is made if it is missing.
	Namespace string `yaml:"namespace,omitempty"`
	// Scope is how far the add-on reaches.
	Scope AddonScope `yaml:"scope" jsonschema:"required"`
	// Rights are all that the add-on may do. Its objects are applied with them and no others, and
	// no role among its objects can hand out more.
	Rights AddonRights `yaml:"rights" jsonschema:"required"`
	// HealthyWithin is how long changed manifests may take until all objects are healthy, and have
	// been so for a minute. When it is over, those that were healthy before are applied again, and
	// the state of the add-on says so. What is no longer wanted stays until then. 0s leaves the
	// changed ones, and takes away what is not wanted at once. Time without an API server does not
	// count, and the first manifests have no limit.
	HealthyWithin Duration `yaml:"healthyWithin"`
	// Requires is what the add-on needs of the cluster. What is not there keeps all of it from
	// being applied.
	Requires AddonRequires `yaml:"requires"`
}

func (a *Addon) defaults() { a.Spec.HealthyWithin = Duration(10 * time.Minute) }

// AddonRegistry is a registry that has the artefact of an add-on. What comes from it is believed by
// its digest.
type AddonRegistry struct {
	// Address is the registry, with or without a port; of a mirror that keeps what others have in a
	// folder, with that folder.
	Address RegistryPath `yaml:"address" jsonschema:"required"`
	// CA signs the registry's certificate, in PEM. Nothing else vouches for it.
	CA Bundle `yaml:"ca,omitempty"`
	// PlainHTTP asks without TLS.
	PlainHTTP bool `yaml:"plainHTTP"`
	// Username is the user that the registry is told; without it, nobody.
	Username string `yaml:"username,omitempty"`
	// Password is the user's password, or a token.
	Password Secret `yaml:"password,omitempty"`
}

// AddonScope is how far an add-on reaches: into some namespaces, or everywhere.
type AddonScope struct {
	// Namespaces are those that the add-on is kept to; they are made if they are missing. Objects
	// elsewhere, and objects of the whole cluster, are refused. Namespaces whose names begin with
	// orlop- nobody but add-ons can make.
	Namespaces []string `yaml:"namespaces,omitempty"`
	// Cluster lets the add-on have objects in every namespace, and of the whole cluster.
	Cluster bool `yaml:"cluster"`
}

// AddonRights are the cluster rights of an add-on, which the API server holds it to.
type AddonRights struct {
	// Rules are rights as in a Role or a ClusterRole (rbac.authorization.k8s.io/v1, PolicyRule): in
	// the namespaces of the scope, or everywhere.
	Rules []PolicyRule `yaml:"rules,omitempty"`
	// NamespaceAdmin gives the role admin of Kubernetes in the namespaces of the scope.
	NamespaceAdmin bool `yaml:"namespaceAdmin"`
	// ClusterAdmin gives the role cluster-admin of Kubernetes: everything.
	ClusterAdmin bool `yaml:"clusterAdmin"`
}

// PolicyRule says what may be done with what.
type PolicyRule struct {
	// APIGroups are the groups of the resources; "" is the core group.
	APIGroups []APIGroup `yaml:"apiGroups,omitempty"`
	// Resources are the resources, such as deployments or pods/log.
	Resources []string `yaml:"resources,omitempty"`
	// ResourceNames are the only objects that are meant.
	ResourceNames []string `yaml:"resourceNames,omitempty"`
	// NonResourceURLs are paths of the API server instead of resources; with the scope cluster
	// only.
	NonResourceURLs []string `yaml:"nonResourceURLs,omitempty"`
	// Verbs are what may be done. Applying an object takes get, create and patch; taking it away
	// needs no right.
	Verbs []string `yaml:"verbs" jsonschema:"required"`
}

// AddonRequires is what an add-on needs of the cluster.
type AddonRequires struct {
	// Kubernetes is the least version of the API server, as ">=1.36" or ">=1.36.2".
	Kubernetes AtLeast `yaml:"kubernetes,omitempty"`
}

// APIGroup is a group of resources. The core group's name is empty, and not the zero value.
type APIGroup struct {
	name  string
	given bool
}

// UnmarshalText takes the name as it is.
func (g *APIGroup) UnmarshalText(text []byte) error {
	*g = APIGroup{string(text), true}
	return nil
}

// String is the name.
func (g APIGroup) String() string { return g.name }

// MarshalText is String.
func (g APIGroup) MarshalText() ([]byte, error) { return []byte(g.name), nil }

// Manifest is the text of an add-on's objects. It may hold Secrets, so it is printed like one.
type Manifest struct{ Secret }

// AtLeast is a version and those after it. The zero value is all versions.
type AtLeast struct{ version string }

const wantAtLeast = `a least version, such as ">=1.36"`

// UnmarshalText reads ">=" and a version of two or three numbers.
func (a *AtLeast) UnmarshalText(text []byte) error {
	version, least := strings.CutPrefix(string(text), ">=")
	version = strings.TrimLeft(version, " ")
	if !least || !isVersion(version) {
		w := &wrong{reason: fmt.Sprintf("%s is not a least version", quote(string(text))), expected: wantAtLeast}
		if bare := strings.TrimLeft(string(text), "v>=^~ "); isVersion(bare) {
			w.nearest = ">=" + bare
		}
		return w
	}
	a.version = version
	return nil
}

// isVersion says that a text is two or three numbers with dots between them.
func isVersion(s string) bool {
	numbers := strings.Split(s, ".")
	for _, n := range numbers {
		if len(n) < 1 || len(n) > 5 || strings.Trim(n, "0123456789") != "" {
			return false
		}
	}
	return len(numbers) == 2 || len(numbers) == 3
}

// String is ">=" and the version; empty for all versions.
func (a AtLeast) String() string {
	if a.version == "" {
		return ""
	}
	return ">=" + a.version
}

// MarshalText is String.
func (a AtLeast) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Version is the least version, such as "1.36"; empty for all versions.
func (a AtLeast) Version() string { return a.version }

// DefaultNamespace is where the objects of an add-on go that name no namespace.
func (s AddonSpec) DefaultNamespace() string {
	switch {
	case s.Namespace != "":
		return s.Namespace
	case len(s.Scope.Namespaces) > 0:
		return s.Scope.Namespaces[0]
	}
	return "default"
}

// addonPath is the path of an add-on's document, as in Problem.Field.
func addonPath(name string) string { return `Addon["` + shorten(name) + `"]` }
