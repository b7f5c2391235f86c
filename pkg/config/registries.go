package config

import (
	"fmt"
	"slices"
	"strings"
)

// ImageRegistry configures a registry for images of pods.
type ImageRegistry struct {
	Address   RegistryPath   `yaml:"address" jsonschema:"required"`
	Mirrors   []RegistryName `yaml:"mirrors,omitempty"`
	CA        Bundle         `yaml:"ca,omitempty"`
	PlainHTTP bool           `yaml:"plainHTTP"`
	Username  string         `yaml:"username,omitempty"`
	Password  Secret         `yaml:"password,omitempty"`
}

// RegistryName is the registry part of image names (host or host:port), or AnyRegistry.
type RegistryName string

// AnyRegistry means every registry.
const AnyRegistry RegistryName = "*"

const wantRegistryName = `a registry as in image names, such as docker.io or registry.example.com:5000, or "*" for all`

// UnmarshalText parses a registry name.
func (r *RegistryName) UnmarshalText(text []byte) error {
	s := string(text)
	if host, _, below := strings.Cut(s, "/"); below {
		return &wrong{reason: "contains more than a registry", expected: wantRegistryName, nearest: host}
	}
	if RegistryName(s) != AnyRegistry {
		if err := registryHost(s); err != nil {
			return &wrong{reason: fmt.Sprintf("the host %s %v", quote(s), err), expected: wantRegistryName}
		}
	}
	*r = RegistryName(s)
	return nil
}

// MarshalText returns the text.
func (r RegistryName) MarshalText() ([]byte, error) { return []byte(r), nil }

// Host returns the registry and the path prefix.
func (r RegistryPath) Host() (host, prefix string) {
	host, prefix, _ = strings.Cut(string(r), "/")
	return host, prefix
}

// Repository returns the base URL of the registry's repositories, without the scheme: the host,
// "/v2", and the path prefix if the registry has one (distribution-spec, "Endpoints").
func (r RegistryPath) Repository() string {
	host, prefix := r.Host()
	if prefix == "" {
		return host + "/v2"
	}
	return host + "/v2/" + prefix
}

// maxImageRegistries is the maximum number of registries. It is low because each unreachable
// registry delays every pull.
const maxImageRegistries = 16

func (v machineValidator) imageRegistries(path string, all []ImageRegistry) {
	if len(all) > maxImageRegistries {
		v.on(path, wrong{reason: fmt.Sprintf("%d registries", len(all)), expected: fmt.Sprintf("at most %d", maxImageRegistries)})
	}
	for i, r := range all {
		at := fmt.Sprintf("%s[%d]", path, i)
		if slices.ContainsFunc(all[:i], func(o ImageRegistry) bool { return o.Address == r.Address }) && r.Address != "" {
			v.on(at+".address", wrong{reason: quote(string(r.Address)) + " is given twice", expected: "each once"})
		}
		host, prefix := r.Address.Host()
		if prefix != "" && len(r.Mirrors) == 0 && !v.broken[at+".mirrors"] {
			v.on(at+".address", wrong{reason: "has a path, but mirrors is empty", expected: "mirrors with the registries of the images, or the registry without a path", nearest: host})
		}
		for j, m := range r.Mirrors {
			switch {
			case string(m) == host:
				v.on(fmt.Sprintf("%s.mirrors[%d]", at, j), wrong{reason: quote(host) + " is the registry itself", expected: "other registries"})
			case slices.Contains(r.Mirrors[:j], m):
				v.on(fmt.Sprintf("%s.mirrors[%d]", at, j), wrong{reason: quote(string(m)) + " is given twice"})
			}
		}
		v.bundle(at+".ca", r.CA)
		v.registryAccess(at, r.CA, r.PlainHTTP, r.Username, r.Password)
	}
}

// registryAccess validates TLS and credentials of a registry.
func (v checks) registryAccess(at string, ca Bundle, plainHTTP bool, username string, password Secret) {
	switch {
	case !ca.IsZero() && plainHTTP:
		v.on(at+".plainHTTP", wrong{reason: "cannot be combined with ca", expected: "ca or plainHTTP"})
	case !password.IsZero() && plainHTTP:
		v.on(at+".password", wrong{reason: "would be sent without TLS", expected: "a registry with TLS"})
	case (username == "") != password.IsZero() && !v.broken[at+".password"]:
		v.on(at, wrong{reason: "has only one of username and password", expected: "both or neither"})
	case strings.Contains(username, ":"):
		v.on(at+".username", wrong{reason: "has a colon", expected: "a name without one (RFC 7617)"})
	}
}
