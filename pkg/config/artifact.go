package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Artifact is the name of an OCI artifact: registry, repository, and digest of the manifest. The
// name contains no tag, so it always refers to the same content. The zero value means no artifact.
type Artifact struct {
	Registry   string // host, or host:port
	Repository string // for example team/ingress
	SHA256     string // of the manifest, lower-case hexadecimal
}

const wantArtifact = "a registry, a repository and a digest, such as registry.example.com/team/ingress@sha256:… (64 hexadecimal digits)"

// longestRepository is the maximum length of a repository name together with the name of its
// registry (OCI distribution specification 1.1).
const longestRepository = 255

// UnmarshalText parses REGISTRY/REPOSITORY@sha256:DIGEST.
func (a *Artifact) UnmarshalText(text []byte) error {
	s := string(text)
	place, digest, pinned := strings.Cut(s, "@")
	registry, repository, _ := strings.Cut(place, "/")
	if err := registryHost(registry); err != nil {
		return &wrong{reason: fmt.Sprintf("the registry %s %v", quote(registry), err), expected: wantArtifact}
	}
	name, tag, tagged := strings.Cut(repository, ":")
	if !isRepository(name) || len(place) > longestRepository {
		return &wrong{reason: fmt.Sprintf("%s is not a repository", quote(name)), expected: wantArtifact}
	}
	if !pinned {
		return &wrong{reason: "has no digest", expected: wantArtifact, hint: "the content of a tag can change; `oras resolve` and `crane digest` print the digest"}
	}
	sum, isSHA256 := strings.CutPrefix(digest, "sha256:")
	if !isSHA256 || len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "" {
		return &wrong{reason: fmt.Sprintf("the digest %s is not a SHA-256", quote(digest)), expected: wantArtifact}
	}
	if tagged {
		return &wrong{reason: fmt.Sprintf("the tag %s has no effect with a digest", quote(tag)), expected: wantArtifact, nearest: registry + "/" + name + "@" + digest}
	}
	*a = Artifact{registry, name, sum}
	return nil
}

// isRepository reports whether a repository name is valid (OCI distribution specification 1.1,
// "Pulling manifests"): parts separated by slashes; each part consists of lower-case letters and
// digits, with a dot, one or two underscores, or hyphens in between.
func isRepository(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		between := ""
		for i, r := range part {
			if letter := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'; !letter {
				between += string(r)
				if i == 0 || i == len(part)-1 {
					return false
				}
				continue
			}
			if between != "" && between != "." && between != "_" && between != "__" && strings.Trim(between, "-") != "" {
				return false
			}
			between = ""
		}
		if part == "" || between != "" {
			return false
		}
	}
	return true
}

// registryHost validates the host or host:port of a registry. Except for localhost, a name without
// a dot and without a port is invalid, because it would be the first part of a path in an image
// name.
func registryHost(s string) error {
	host, digits, err := net.SplitHostPort(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
			return errors.New("is an IPv6 address without brackets and a port")
		}
		if !strings.Contains(s, ".") && s != "localhost" && s != "" {
			return errors.New("has neither a dot nor a port")
		}
		return hostOrAddr(s)
	}
	if port, err := strconv.ParseUint(digits, 10, 16); err != nil || port == 0 {
		return errors.New("has a port that is not in 1 to 65535")
	}
	// containerd puts the host in a URL, in which brackets are valid only around an IPv6 address.
	// With an invalid URL, containerd would ignore the whole configuration file of the registry,
	// and report the error only in its log.
	if a, err := netip.ParseAddr(host); strings.HasPrefix(s, "[") && (err != nil || !a.Is6()) {
		return errors.New("has brackets around a host that is not an IPv6 address")
	}
	return hostOrAddr(host)
}

// String returns the name in the format of UnmarshalText.
func (a Artifact) String() string {
	if a == (Artifact{}) {
		return ""
	}
	return a.Registry + "/" + a.Repository + "@" + a.Digest()
}

// MarshalText returns String.
func (a Artifact) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// Digest returns "sha256:…".
func (a Artifact) Digest() string { return "sha256:" + a.SHA256 }

// In returns the name of the same artifact in another registry.
func (a Artifact) In(r RegistryPath) string { return string(r) + "/" + a.Repository + "@" + a.Digest() }

// RegistryPath is a registry, with an optional path prefix of a mirror: host, host:port or
// host:port/path.
type RegistryPath string

const wantRegistry = "a registry, such as registry.example.com:5000, or a mirror with a path, such as mirror.example.com/outside"

// UnmarshalText parses a registry with an optional path.
func (r *RegistryPath) UnmarshalText(text []byte) error {
	s := string(text)
	host, prefix, below := strings.Cut(s, "/")
	if strings.Contains(s, "://") {
		return &wrong{reason: "is a URL", expected: wantRegistry, nearest: strings.TrimRight(s[strings.Index(s, "://")+3:], "/")}
	}
	if err := registryHost(host); err != nil {
		return &wrong{reason: fmt.Sprintf("the host %s %v", quote(host), err), expected: wantRegistry}
	}
	if below && !isRepository(prefix) {
		return &wrong{reason: fmt.Sprintf("%s is not a path of a registry", quote(prefix)), expected: wantRegistry}
	}
	*r = RegistryPath(s)
	return nil
}

// MarshalText returns the text.
func (r RegistryPath) MarshalText() ([]byte, error) { return []byte(r), nil }
