package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The types of a provenance.
const (
	// TypeInToto is the type of the signed payload.
	TypeInToto     = "application/vnd.in-toto+json"
	ProvenanceType = "https://in-toto.io/Statement/v1"
	PredicateType  = "https://slsa.dev/provenance/v1"
	// BuildType is the type of a build by the imager, in which ExternalParameters are the options
	// of the imager. docs/updates.md says how to repeat the build.
	BuildType = "https://orlop.dev/build/imager/v1"
	// Builder identifies the imager, on a computer that the holder of the signing key trusts.
	Builder = "https://orlop.dev/builder/imager"
)

// MaxProvenance is the maximum size of an envelope, in bytes; a reader holds the envelope in
// memory. A typical envelope has 250 KB.
const MaxProvenance = 4 << 20

// Names of digests (in-toto attestation framework, digest_set.md); the values are lower-case
// hexadecimal.
const (
	DigestSHA256    = "sha256"
	DigestGitCommit = "gitCommit"
	// DigestDirHash is the digest of a Go module: "h1:" in go.sum.
	DigestDirHash = "dirHash"
)

// Provenance is a signed statement about the inputs of the build of a version and the digests of
// its files. It has the form of SLSA (https://slsa.dev/provenance/v1): an in-toto statement
// (in-toto attestation framework 1.0), which is the payload of a DSSE envelope. Readers ignore
// unknown fields, as the specification requires.
//
// The imager writes the provenance beside the bundle and signs both with the same keys. The package
// decides whether a provenance belongs to a bundle. It does not check whether the inputs are good.
// It cannot prove that the files result from the inputs; only another build of the same source can
// prove that.
type Provenance struct {
	Type string `json:"_type"` // ProvenanceType
	// Subject are the files of the version with their digests.
	Subject       []Resource `json:"subject"`
	PredicateType string     `json:"predicateType"` // PredicateType
	Predicate     Predicate  `json:"predicate"`
}

// Resource is a file, a package or a source with its digests by name.
type Resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"` // such as a package URL
	Digest map[string]string `json:"digest,omitempty"`
}

// Predicate is the provenance of SLSA.
type Predicate struct {
	BuildDefinition BuildDefinition `json:"buildDefinition"`
	RunDetails      RunDetails      `json:"runDetails"`
}

// BuildDefinition describes the inputs of a build.
type BuildDefinition struct {
	BuildType          string          `json:"buildType"` // BuildType
	ExternalParameters BuildParameters `json:"externalParameters"`
	// InternalParameters are the inputs that the builder sets itself: the time of the source and
	// the dates of the pinned versions.
	InternalParameters any `json:"internalParameters,omitempty"`
	// ResolvedDependencies are the source, the packages of Debian, the Go modules and the other
	// files from which the version was built.
	ResolvedDependencies []Resource `json:"resolvedDependencies"`
}

// BuildParameters are the options of the imager.
type BuildParameters struct {
	Profile    string   `json:"profile"`
	Version    string   `json:"version"`
	Epoch      int      `json:"epoch"`
	Kubernetes string   `json:"kubernetes"` // version, with a leading v
	Outputs    []string `json:"outputs"`
	// Programs are prebuilt executables that the build used instead of building them from the
	// source.
	Programs []string `json:"programs,omitempty"`
}

// RunDetails describes the builder. It has no times, because the same source must give the same
// bytes.
type RunDetails struct {
	Builder BuilderID `json:"builder"`
}

// BuilderID names the builder, and the versions of its tools.
type BuilderID struct {
	ID      string            `json:"id"` // Builder
	Version map[string]string `json:"version"`
}

// SealProvenance signs a provenance with each of the keys and returns the envelope. The same input
// gives the same bytes.
func SealProvenance(s Provenance, keys ...Key) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	envelope, err := SignPayload(TypeInToto, payload, keys...)
	if err == nil && len(envelope) > MaxProvenance {
		err = fmt.Errorf("it has %d KiB, and readers accept %d", len(envelope)>>10, MaxProvenance>>10)
	}
	if err != nil {
		return nil, fmt.Errorf("provenance: %w", err)
	}
	return envelope, nil
}

// VerifyProvenance returns the provenance in an envelope. It fails unless enough trusted keys have
// signed the envelope and the provenance describes the bundle with the statement `want`: it has the
// same version, epoch and profile, and contains the digest of each part.
func VerifyProvenance(envelope []byte, trust Trust, want Statement) (Provenance, error) {
	s, err := verifyProvenance(envelope, trust)
	if err == nil {
		err = s.checkVersion(want)
	}
	if err != nil {
		return Provenance{}, fmt.Errorf("provenance: %w", err)
	}
	return s, nil
}

// verifyProvenance returns the provenance in an envelope after it has verified the signatures. It
// does not check to which bundle the provenance belongs.
func verifyProvenance(envelope []byte, trust Trust) (s Provenance, err error) {
	if len(envelope) > MaxProvenance {
		return s, fmt.Errorf("it has more than %d KiB", MaxProvenance>>10)
	}
	payload, err := VerifyPayload(envelope, TypeInToto, trust)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(payload, &s); err != nil {
		return s, fmt.Errorf("cannot parse its statement: %w", err)
	}
	return s, s.check()
}

// check rejects a statement that is not a provenance of the imager.
func (s Provenance) check() error {
	for _, c := range []struct{ what, got, want string }{
		{"type", s.Type, ProvenanceType},
		{"predicate type", s.PredicateType, PredicateType},
		{"build type", s.Predicate.BuildDefinition.BuildType, BuildType},
		{"builder", s.Predicate.RunDetails.Builder.ID, Builder},
	} {
		if c.got != c.want {
			return fmt.Errorf("its %s is %q, and %s is expected", c.what, c.got, c.want)
		}
	}
	if len(s.Subject) == 0 {
		return errors.New("it describes no file")
	}
	return nil
}

// checkVersion returns an error if the provenance does not describe the bundle with the statement
// `want`.
func (s Provenance) checkVersion(want Statement) error {
	p := s.Predicate.BuildDefinition.ExternalParameters
	if p.Version != want.Version || p.Profile != want.Profile || p.Epoch != want.Epoch {
		return fmt.Errorf("it describes version %s, epoch %d, profile %s, and the bundle has version %s, epoch %d, profile %s",
			p.Version, p.Epoch, p.Profile, want.Version, want.Epoch, want.Profile)
	}
	for _, part := range want.Parts() {
		if !slices.ContainsFunc(s.Subject, func(r Resource) bool { return r.Digest[DigestSHA256] == part.SHA256 }) {
			return fmt.Errorf("it does not describe the %s of the bundle, with SHA-256 %s", part.Name, part.SHA256)
		}
	}
	return nil
}

// Source returns the Git commit of the source. It is empty if the provenance names no commit.
func (s Provenance) Source() string {
	for _, r := range s.Predicate.BuildDefinition.ResolvedDependencies {
		if commit := r.Digest[DigestGitCommit]; commit != "" {
			return commit
		}
	}
	return ""
}
