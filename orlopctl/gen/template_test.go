package gen

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestSignTemplate checks the OrlopMachineTemplate that SignTemplate returns as YAML. It must
// contain the signed documents byte for byte, and its signature must be valid until the expiry.
func TestSignTemplate(t *testing.T) {
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	expiry := now.Add(30 * time.Minute).Truncate(time.Second)
	documents := []byte("kind: Machine\nspec:\n  # a comment\n  sysctls: {a: \"b: c\"}\n\n---\nkind: Cluster\n")
	// Without quotes, the name 007 would be a number in YAML.
	text, err := SignTemplate(ca, Template{Name: "007", Match: `host.serial == "a\b"`, Expiry: expiry}, documents, now)
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Metadata struct{ Name any }
		Spec     struct {
			Template struct {
				Spec struct{ Match, Documents, Signature string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	got := object.Spec.Template.Spec
	if object.Metadata.Name != "007" {
		t.Errorf("the name in the object is %#v, want the text 007", object.Metadata.Name)
	}
	if got.Match != `host.serial == "a\b"` || !bytes.Equal([]byte(got.Documents), documents) {
		t.Errorf("%+v", got)
	}
	signed := claim.Signed{Documents: []byte(got.Documents), Signature: []byte(got.Signature)}
	template, _, err := signed.Verify([]*x509.Certificate{ca.Cert}, now)
	if err != nil || template.Prefix != "007" || !template.Expires.Equal(expiry) {
		t.Errorf("%+v, %v", template, err)
	}
	if _, _, err := signed.Verify([]*x509.Certificate{ca.Cert}, expiry); err == nil {
		t.Error("the signature is valid after its expiry")
	}
}
