package config

import (
	"fmt"
	"strings"
	"time"
)

// Addon is the document of an add-on: the objects that the control plane applies to the cluster,
// and the permissions that it uses for them. A configuration can contain several add-ons, each with
// its own name.
type Addon struct {
	Metadata Metadata  `yaml:"metadata" jsonschema:"required"`
	Spec     AddonSpec `yaml:"spec" jsonschema:"required"`
}

// AddonSpec describes an add-on. It must be the same on every control-plane machine of the cluster:
// the machine that is elected as leader of the controllers applies the objects of its own
// configuration.
type AddonSpec struct {
	Manifests     []Manifest      `yaml:"manifests,omitempty"`
	Artifact      Artifact        `yaml:"artifact,omitempty"`
	Registries    []AddonRegistry `yaml:"registries,omitempty"`
	Namespace     string          `yaml:"namespace,omitempty"`
	Scope         AddonScope      `yaml:"scope" jsonschema:"required"`
	Rights        AddonRights     `yaml:"rights" jsonschema:"required"`
	HealthyWithin Duration        `yaml:"healthyWithin" limits:"2m to 24h, or 0s to never roll back"`
	Requires      AddonRequires   `yaml:"requires"`
}

func (a *Addon) defaults() { a.Spec.HealthyWithin = Duration(10 * time.Minute) }

// AddonRegistry is a registry with the artifact of an add-on. The machine verifies the artifact by
// its digest.
type AddonRegistry struct {
	Address   RegistryPath `yaml:"address" jsonschema:"required"`
	CA        Bundle       `yaml:"ca,omitempty"`
	PlainHTTP bool         `yaml:"plainHTTP"`
	Username  string       `yaml:"username,omitempty"`
	Password  Secret       `yaml:"password,omitempty"`
}

// AddonScope limits an add-on to some namespaces, or permits objects in the whole cluster.
type AddonScope struct {
	Namespaces []string `yaml:"namespaces,omitempty"`
	Cluster    bool     `yaml:"cluster"`
}

// AddonRights are the permissions of an add-on, which the API server enforces.
type AddonRights struct {
	Rules          []PolicyRule `yaml:"rules,omitempty"`
	NamespaceAdmin bool         `yaml:"namespaceAdmin"`
	ClusterAdmin   bool         `yaml:"clusterAdmin"`
}

// PolicyRule permits verbs on resources or paths.
type PolicyRule struct {
	APIGroups       []APIGroup `yaml:"apiGroups,omitempty"`
	Resources       []string   `yaml:"resources,omitempty"`
	ResourceNames   []string   `yaml:"resourceNames,omitempty"`
	NonResourceURLs []string   `yaml:"nonResourceURLs,omitempty"`
	Verbs           []string   `yaml:"verbs" jsonschema:"required"`
}

// AddonRequires lists requirements for the cluster.
type AddonRequires struct {
	Kubernetes AtLeast `yaml:"kubernetes,omitempty"`
}

// APIGroup is an API group. The zero value means that no group is given; it differs from the core
// group, which has an empty name.
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

// Manifest is a text with objects of an add-on. The objects can include Secrets, so the text is
// never printed, like a secret.
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

// DefaultNamespace returns the namespace of objects that specify no namespace.
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
func addonPath(name string) string { return documentPath(kindAddon, name) }
