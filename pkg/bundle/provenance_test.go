package bundle

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

func digestOf(letter string) string { return strings.Repeat(letter, 64) }

func part(letter string) Part { return Part{SHA256: digestOf(letter), Size: 1} }

// version is the statement of the bundle that sample describes.
var version = Statement{
	Version: "1.2.0", Profile: "test", Epoch: 1, Root: "as on the command line",
	RootImage: part("a"), Packed: part("b"), UKI: part("c"), SBOM: part("d"),
}

func sample() Provenance {
	file := func(name, letter string) Resource {
		return Resource{Name: name, Digest: map[string]string{DigestSHA256: digestOf(letter)}}
	}
	return Provenance{
		Type: ProvenanceType, PredicateType: PredicateType,
		Subject: []Resource{file("root.img", "a"), file("root.img.zst", "b"), file("orlop.efi", "c"), file("sbom.spdx.json", "d"), file("orlop.bundle", "e")},
		Predicate: Predicate{
			BuildDefinition: BuildDefinition{
				BuildType:          BuildType,
				ExternalParameters: BuildParameters{Profile: "test", Version: "1.2.0", Epoch: 1, Kubernetes: "v1.37.2", Outputs: []string{"orlop.bundle"}},
				InternalParameters: map[string]any{"sourceDateEpoch": 1700000000.0},
				ResolvedDependencies: []Resource{
					{URI: "git+https://example.com/orlop", Digest: map[string]string{DigestGitCommit: strings.Repeat("1", 40)}},
					file("go.sum", "f"),
				},
			},
			RunDetails: RunDetails{Builder: BuilderID{ID: Builder, Version: map[string]string{"go": "go1.26.11", "gcc": "14.2"}}},
		},
	}
}

func newKey(t *testing.T) (Key, Trust) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	return key, trust
}

// TestProvenanceForm compares the payload with a golden file. The specifications define its field
// names (slsa.dev/provenance/v1; in-toto attestation framework 1.0).
func TestProvenanceForm(t *testing.T) {
	text, err := json.MarshalIndent(sample(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, string(text)+"\n", "provenance.json")
}

// TestVerifyProvenance checks that VerifyProvenance accepts a provenance only if it has a trusted
// signature and the right form, and describes the version of the bundle.
func TestVerifyProvenance(t *testing.T) {
	key, trust := newKey(t)
	stranger, _ := newKey(t)
	seal := func(s Provenance, keys ...Key) []byte {
		t.Helper()
		envelope, err := SealProvenance(s, keys...)
		if err != nil {
			t.Fatal(err)
		}
		return envelope
	}
	good := seal(sample(), key)
	if again := seal(sample(), key); string(again) != string(good) {
		t.Error("SealProvenance returns different bytes for the same statement")
	}
	if s, err := VerifyProvenance(good, trust, version); err != nil || !reflect.DeepEqual(s, sample()) || s.Source() != strings.Repeat("1", 40) {
		t.Errorf("%+v, %v", s, err)
	}
	signed := func(payloadType, payload string) []byte {
		t.Helper()
		envelope, err := SignPayload(payloadType, []byte(payload), key)
		if err != nil {
			t.Fatal(err)
		}
		return envelope
	}
	other := func(change func(*Statement)) Statement {
		of := version
		change(&of)
		return of
	}
	incomplete := sample()
	incomplete.Subject = incomplete.Subject[1:]
	for _, c := range []struct {
		name     string
		envelope []byte
		of       Statement
		want     string
	}{
		{"another key", seal(sample(), stranger), version, "no trusted key has signed it"},
		{"no envelope", []byte("["), version, "not a DSSE envelope"},
		{"too large", make([]byte, MaxProvenance+1), version, "more than 4096 KiB"},
		{"the statement of a bundle", signed(TypePayload, "{}"), version, "its payload type is"},
		{"another statement of in-toto", signed(TypeInToto, `{"_type": "`+ProvenanceType+`", "predicateType": "https://in-toto.io/attestation/vulns/v0.1"}`), version, "its predicate type is"},
		{"no statement", signed(TypeInToto, "[]"), version, "cannot parse its statement"},
		{"another version", good, other(func(s *Statement) { s.Version = "1.2.1" }), "describes version 1.2.0, epoch 1, profile test, and the bundle has version 1.2.1"},
		{"another epoch", good, other(func(s *Statement) { s.Epoch = 0 }), "and the bundle has version 1.2.0, epoch 0"},
		{"another profile", good, other(func(s *Statement) { s.Profile = "metal" }), "profile metal"},
		{"another root", good, other(func(s *Statement) { s.RootImage = part("f") }), "does not describe the root image of the bundle"},
		{"another packed root", good, other(func(s *Statement) { s.Packed = part("f") }), "does not describe the packed root image"},
		{"another kernel", good, other(func(s *Statement) { s.UKI = part("f") }), "does not describe the unified kernel image"},
		{"another bill of materials", good, other(func(s *Statement) { s.SBOM = part("f") }), "does not describe the bill of materials"},
		{"a missing subject", seal(incomplete, key), version, "does not describe the root image"},
	} {
		if s, err := VerifyProvenance(c.envelope, trust, c.of); err == nil || !strings.Contains(err.Error(), c.want) || len(s.Subject) > 0 {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestSealProvenanceRefuses checks that SealProvenance signs no statement that VerifyProvenance
// would reject.
func TestSealProvenanceRefuses(t *testing.T) {
	key, _ := newKey(t)
	for want, change := range map[string]func(*Provenance){
		"its type is":             func(s *Provenance) { s.Type = "" },
		"its build type is":       func(s *Provenance) { s.Predicate.BuildDefinition.BuildType = "x" },
		"its builder is":          func(s *Provenance) { s.Predicate.RunDetails.Builder.ID = "x" },
		"it describes no file":    func(s *Provenance) { s.Subject = nil },
		"and readers accept 4096": func(s *Provenance) { s.Subject[0].Name = strings.Repeat("a", MaxProvenance) },
	} {
		s := sample()
		change(&s)
		if _, err := SealProvenance(s, key); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
