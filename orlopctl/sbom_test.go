package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/bundle"
)

// TestVerifySBOM checks that verifySBOM rejects a document if its digest is not that in the
// statement. If the user has named trusted keys, it also rejects a statement that none of these
// keys has signed.
func TestVerifySBOM(t *testing.T) {
	document := []byte(`{"packages": []}`)
	sum := sha256.Sum256(document)
	part := bundle.Part{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(document))}
	payload, err := json.Marshal(bundle.Statement{Version: "1.0.0", Profile: "test", Root: "root", RootImage: part, Packed: part, UKI: part, SBOM: part})
	if err != nil {
		t.Fatal(err)
	}
	key, trust := newReleaseKey(t)
	_, stranger := newReleaseKey(t)
	signed, err := bundle.SignPayload(bundle.TypePayload, payload, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                string
		document, statement []byte
		trust               *bundle.Trust
		want                string // part of the error; empty for success
	}{
		{"trusted key", document, signed, &trust, ""},
		{"no trusted keys", document, signed, nil, ""},
		{"no statement", document, nil, nil, ""},
		{"no statement, trusted key", document, nil, &trust, "the machine has no signed statement of its version"},
		{"signed by another key", document, signed, &stranger, "no trusted key has signed it"},
		{"another document", []byte(`{"packages": {}}`), signed, &trust, "it is damaged or truncated"},
		{"another document, no trusted keys", []byte("{}"), signed, nil, "it is damaged or truncated"},
		{"a longer document", append([]byte(" "), document...), signed, &trust, "larger than the 16 bytes"},
		{"no envelope", document, []byte("{"), nil, "not a DSSE envelope"},
	} {
		s, err := verifySBOM(c.document, c.statement, c.trust)
		if (err == nil) != (c.want == "") || err != nil && (s != nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err == nil && (s == nil) != (c.statement == nil) {
			t.Errorf("%s: returned statement %v", c.name, s)
		}
	}
}

// newReleaseKey returns a new key, and a value that trusts this key.
func newReleaseKey(t *testing.T) (bundle.Key, bundle.Trust) {
	t.Helper()
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.PublicPEM()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(text)
	if err != nil {
		t.Fatal(err)
	}
	return key, trust
}
