package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"fmt"
	"slices"
	"strings"
)

// ImageRule states which signatures the images of some repositories need. For an image, the first
// rule with a matching pattern in Images applies.
type ImageRule struct {
	Images []RepositoryPattern `yaml:"images" jsonschema:"required"`
	// Keys are the accepted keys. A signature by any of the keys is sufficient.
	Keys []ImageKey `yaml:"keys,omitempty"`
	// SignedAs are the repositories that a signature may name. If it is empty, a signature must
	// name the repository of the image.
	SignedAs []RepositoryPattern `yaml:"signedAs,omitempty"`
	// Unsigned accepts the images without a signature.
	Unsigned bool `yaml:"unsigned"`
}

// Limits of image rules.
const (
	maxImageRules    = 32
	maxImagePatterns = 32
	maxImageKeys     = 8
)

// RepositoryPattern is the full name of a repository (registry.example.com/team/app), all
// repositories below a path (registry.example.com/team/*), or AnyRepository.
type RepositoryPattern string

// AnyRepository matches every repository. In SignedAs, it also permits signatures that name no
// repository.
const AnyRepository RepositoryPattern = "*"

const wantRepositoryPattern = `a repository with its registry, such as registry.example.com/team/app, all below a path, such as registry.example.com/*, or "*" for all`

// UnmarshalText parses a pattern. A name must be complete: it must contain docker.io/library/ or
// docker.io/ even where an image of a pod can omit it. containerd completes the names of images
// before rules are applied, so an incomplete pattern would match no image.
func (p *RepositoryPattern) UnmarshalText(text []byte) error {
	s := string(text)
	if RepositoryPattern(s) == AnyRepository {
		*p = AnyRepository
		return nil
	}
	host, repository, found := strings.Cut(s, "/")
	tail, below := "", repository == "*"
	if path, ok := strings.CutSuffix(repository, "/*"); ok {
		repository, tail, below = path, "/*", true
	}
	name, _, tagged := strings.Cut(repository, ":")
	name, _, digested := strings.Cut(name, "@")
	switch err := registryHost(host); {
	case !found && err != nil && isRepository(host):
		return &wrong{reason: quote(s) + " has no registry", expected: wantRepositoryPattern, nearest: "docker.io/library/" + s}
	case err != nil:
		return &wrong{reason: fmt.Sprintf("the registry %s %v", quote(host), err), expected: wantRepositoryPattern}
	case (tagged || digested) && isRepository(name):
		return &wrong{reason: quote(s) + " has a tag or a digest", expected: wantRepositoryPattern, nearest: host + "/" + name + tail}
	case !found:
		return &wrong{reason: quote(s) + " is a registry without a repository", expected: wantRepositoryPattern, nearest: s + "/*"}
	case repository != "*" && !isRepository(repository) || len(s) > longestRepository:
		return &wrong{reason: quote(repository) + " is not a repository", expected: wantRepositoryPattern}
	case host == "index.docker.io":
		return &wrong{reason: "is a former name of docker.io", expected: wantRepositoryPattern, nearest: "docker.io/" + repository + tail}
	case host == "docker.io" && !below && !strings.Contains(repository, "/"):
		return &wrong{reason: quote(s) + " is not the full name", expected: wantRepositoryPattern, nearest: "docker.io/library/" + repository}
	}
	*p = RepositoryPattern(s)
	return nil
}

// MarshalText returns the text.
func (p RepositoryPattern) MarshalText() ([]byte, error) { return []byte(p), nil }

// Matches reports whether the pattern matches the full name of a repository; AnyRepository matches
// the empty name, too.
func (p RepositoryPattern) Matches(repository string) bool {
	if p == AnyRepository {
		return true
	}
	path, below := strings.CutSuffix(string(p), "*")
	if below {
		return strings.HasPrefix(repository, path)
	}
	return repository == path
}

// ImageKey is a public key that signs images: ECDSA (P-256, P-384, P-521), Ed25519, or RSA of at
// least 2048 bits. Its text format is PEM.
type ImageKey struct{ text string }

const wantImageKey = "one public key in PEM (-----BEGIN PUBLIC KEY-----), such as cosign.pub of `cosign generate-key-pair`"

// UnmarshalText parses exactly one key.
func (k *ImageKey) UnmarshalText(text []byte) error {
	canonical, parsed, err := publicKey(string(text), wantImageKey)
	if err != nil {
		return err
	}
	switch key := parsed.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits < 256 {
			return &wrong{reason: fmt.Sprintf("its curve has %d bits", bits), expected: "P-256, P-384 or P-521"}
		}
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 {
			return &wrong{reason: fmt.Sprintf("it is an RSA key of %d bits", bits), expected: "at least 2048 bits"}
		}
	default:
		return &wrong{reason: fmt.Sprintf("it is a %T", parsed), expected: "an ECDSA, Ed25519 or RSA key"}
	}
	k.text = canonical
	return nil
}

// MarshalText returns PEM.
func (k ImageKey) MarshalText() ([]byte, error) { return []byte(k.text), nil }

// Public returns the key; nil for the zero value.
func (k ImageKey) Public() crypto.PublicKey {
	_, key, err := publicKey(k.text, wantImageKey)
	if err != nil {
		return nil
	}
	return key
}

// IsZero reports whether there is no key.
func (k ImageKey) IsZero() bool { return k.text == "" }

// String returns the first half of the SHA-256 of the key.
func (k ImageKey) String() string { return keyName("key", k.text) }

// seenPattern is a pattern of an earlier rule, with the path of the rule.
type seenPattern struct {
	pattern RepositoryPattern
	at      string
}

// imagePolicy validates the rules for signatures of images.
func (v machineValidator) imagePolicy(path string, rules []ImageRule) {
	if len(rules) > maxImageRules {
		v.on(path, wrong{reason: fmt.Sprintf("%d rules", len(rules)), expected: fmt.Sprintf("at most %d", maxImageRules)})
	}
	var seen []seenPattern
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(r.Images) == 0 && !v.broken[at+".images"] {
			v.on(at+".images", wrong{reason: "is empty", expected: wantRepositoryPattern})
		}
		for name, n := range map[string]int{"images": len(r.Images), "signedAs": len(r.SignedAs)} {
			if n > maxImagePatterns {
				v.on(at+"."+name, wrong{reason: fmt.Sprintf("%d patterns", n), expected: fmt.Sprintf("at most %d", maxImagePatterns)})
			}
		}
		for j, p := range r.Images {
			field := fmt.Sprintf("%s.images[%d]", at, j)
			before := slices.IndexFunc(seen, func(o seenPattern) bool { return o.pattern.Matches(strings.TrimSuffix(string(p), "*")) })
			switch {
			case p == "": // not parsed
			case before >= 0:
				v.on(field, wrong{reason: fmt.Sprintf("%s is matched by %s in %s before", quote(string(p)), quote(string(seen[before].pattern)), seen[before].at), expected: "the narrower pattern first, because the first rule decides"})
			default:
				seen = append(seen, seenPattern{p, fmt.Sprintf("imagePolicy[%d]", i)})
			}
		}
		v.imageKeys(at, r)
	}
}

// imageKeys validates the keys of a rule.
func (v machineValidator) imageKeys(at string, r ImageRule) {
	if len(r.Keys) > maxImageKeys {
		v.on(at+".keys", wrong{reason: fmt.Sprintf("%d keys", len(r.Keys)), expected: fmt.Sprintf("at most %d", maxImageKeys)})
	}
	for i, k := range r.Keys {
		if !k.IsZero() && slices.Contains(r.Keys[:i], k) {
			v.on(fmt.Sprintf("%s.keys[%d]", at, i), wrong{reason: "the " + k.String() + " is given twice", expected: "each once"})
		}
	}
	switch {
	case r.Unsigned && (len(r.Keys) > 0 || len(r.SignedAs) > 0):
		v.on(at+".unsigned", wrong{reason: "cannot be combined with keys or signedAs", expected: "keys, or unsigned: true"})
	case !r.Unsigned && len(r.Keys) == 0 && !v.broken[at+".keys"]:
		v.on(at, wrong{reason: "has no keys", expected: "keys, or unsigned: true to accept these images without a signature", hint: "an image that no rule matches cannot start"})
	}
}
