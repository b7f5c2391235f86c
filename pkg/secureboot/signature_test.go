package secureboot

import (
	"testing"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// TestReadAlgorithm checks that readAlgorithm accepts an AlgorithmIdentifier with absent or NULL
// parameters, and rejects all other parameters. RFC 8017, A.1 and A.2.4, permits these two.
func TestReadAlgorithm(t *testing.T) {
	for _, c := range []struct {
		name       string
		parameters func(*cryptobyte.Builder)
		want       bool
	}{
		{"no parameters", func(*cryptobyte.Builder) {}, true},
		{"NULL", func(b *cryptobyte.Builder) { b.AddASN1NULL() }, true},
		{"two NULLs", func(b *cryptobyte.Builder) { b.AddASN1NULL(); b.AddASN1NULL() }, false},
		{"a NULL with content", func(b *cryptobyte.Builder) { b.AddASN1(asn1.NULL, func(b *cryptobyte.Builder) { b.AddUint8(0) }) }, false},
		{"a number", func(b *cryptobyte.Builder) { b.AddASN1Int64(1) }, false},
	} {
		b := cryptobyte.NewBuilder(nil)
		b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oidSHA256)
			c.parameters(b)
		})
		der := cryptobyte.String(b.BytesOrPanic())
		if got := readAlgorithm(&der, oidRSA, oidSHA256); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
