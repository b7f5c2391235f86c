package schema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/pkg/config"
)

var update = flag.Bool("update", false, "rewrite ../schema.json")

const golden = "../schema.json"

// TestGolden checks that schema.json matches the structs and the reference. Update it by: go test
// ./pkg/config/schema -update.
func TestGolden(t *testing.T) {
	got, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s does not match the structs and the reference (%v); run: go test ./pkg/config/schema -update", golden, err)
	}
}

func compiled(t *testing.T) *validator.Schema {
	t.Helper()
	text, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	if err := c.AddResource(address, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// documents returns the documents of a file as JSON values.
func documents(t *testing.T, text string) []any {
	t.Helper()
	var all []any
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var v any
		if err := decoder.Decode(&v); err != nil {
			return all
		}
		asJSON, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		value, err := validator.UnmarshalJSON(bytes.NewReader(asJSON))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, value)
	}
}

// TestReferenceIsValid checks that the schema accepts the reference, as the machine does.
func TestReferenceIsValid(t *testing.T) {
	s := compiled(t)
	ref, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	least := config.New("a", config.RoleWorker)
	for name, text := range map[string]string{"reference": config.Reference, "printed": string(config.Marshal(ref)), "least": string(config.Marshal(least))} {
		found := documents(t, text)
		if len(found) < 2 {
			t.Fatalf("%s: %d documents", name, len(found))
		}
		for i, document := range found {
			if err := s.Validate(document); err != nil {
				t.Errorf("%s, document %d: %v", name, i, err)
			}
		}
	}
}

// TestBadIsInvalid checks that the schema rejects syntax errors, so that editors show them.
func TestBadIsInvalid(t *testing.T) {
	s := compiled(t)
	archive, err := txtar.ParseFile(filepath.Join("..", "testdata", "bad-machine.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"unknown-fields.yaml": true, "role.yaml": true, "units.yaml": true, "units-kubernetes.yaml": true, "units-missing.yaml": true, "no-commands.yaml": true}
	for _, f := range archive.Files {
		if !want[f.Name] {
			continue
		}
		delete(want, f.Name)
		if err := s.Validate(documents(t, string(f.Data))[0]); err == nil {
			t.Errorf("%s: the schema accepts an invalid document", f.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("bad-machine.txtar lacks the cases %v", want)
	}
}

// TestScalars checks that types and their schemas accept the same texts.
func TestScalars(t *testing.T) {
	texts := []string{
		"1GiB", ">= 100GiB", "<=2TiB", ">= 1GiB, <= 2GiB", "> 1GiB", ">= 1GiB,", "0KiB", "256M", "256Mi", "1.5GiB", "200m", "2", "0.5", "-1", "10s", "1m30s", "500ms", "10", "1d", "52:54:00:AB:cd:ef", "52-54-00-ab-cd-ef",
		"https://h:6443", "https://[::1]:1", "http://h:1", "https://h", "https://h:1/x", ">=1.36", ">= 1.36.2", ">1.36", ">=1", "h:6514", "[::1]:6514", "h", "10.0.0.1", "2001:db8::1", "10.0.0.0/24", "::/0", "x", "(redacted)",
		"b3Jsb3AgcmVmZXJlbmNlIGtleSwgbmV2ZXIgdXNlIQA=", "c2hvcnQ=", "age1suheuk8f2wayuxgxqwurclv5zatmqx468h3fna50ae82r0fw0a5q5x2er9", "ssh-ed25519 AAAA",
		"h/x", "h.example", "h.example:5000", "*", "localhost/x", "h.example/x/y_z", "h.example/*", "h.example/x/*", "h.example/*/x", "h.example:5000/x/", "h.example/X", "10.0.0.1:5000/x", "[::1]:5000/x", "[::1]/x", "h.example/x:1",
		"h.example/x@sha256:" + strings.Repeat("a", 64), "h.example/x@sha256:" + strings.Repeat("A", 64), "h.example@sha256:" + strings.Repeat("a", 64), "x@sha256:" + strings.Repeat("a", 64),
	}
	seen := map[reflect.Type]bool{}
	for kind := range scalars {
		schema, err := json.Marshal(scalars[kind])
		if err != nil {
			t.Fatal(err)
		}
		doc, err := validator.UnmarshalJSON(bytes.NewReader(schema))
		if err != nil {
			t.Fatal(err)
		}
		c := validator.NewCompiler()
		if err := c.AddResource("scalar.json", doc); err != nil {
			t.Fatal(err)
		}
		s := c.MustCompile("scalar.json")
		for _, text := range texts {
			reads := reflect.New(kind).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) == nil
			accepts := s.Validate(text) == nil
			// The patterns for addresses and prefixes are simple, so they accept some texts that
			// the types reject.
			loose := kind == reflect.TypeFor[netip.Addr]() || kind == reflect.TypeFor[netip.Prefix]()
			if reads && !accepts || accepts && !reads && !loose {
				t.Errorf("%s %q: accepted by the type: %t, by the schema: %t", kind, text, reads, accepts)
			}
			seen[kind] = seen[kind] || reads
		}
	}
	for kind := range scalars {
		pem := kind == reflect.TypeFor[config.Certificate]() || kind == reflect.TypeFor[config.Bundle]() || kind == reflect.TypeFor[config.PrivateKey]() || kind == reflect.TypeFor[config.SigningKey]() || kind == reflect.TypeFor[config.ImageKey]()
		if !seen[kind] && !pem {
			t.Errorf("%s: the type accepts none of the texts", kind)
		}
	}
}
