package secureboot

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	encoding "encoding/asn1"
	"fmt"

	"github.com/foxboron/go-uefi/pkcs7"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Signer is a certificate with its private key. FromKey reads the key from a file; FromCommand uses
// a command.
type Signer struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// explicit0 is the ASN.1 tag [0] of optional fields.
var explicit0 = asn1.Tag(0).Constructed().ContextSpecific()

// signImage returns a PKCS #7 signature of an image, as ContentInfo. content is the inner part of
// SpcIndirectDataContent, and oid its type. The signature has only the two signed attributes that
// Authenticode requires. pkcs7.SignPKCS7 is not used, because it would add the present time.
func (s Signer) signImage(content []byte, oid encoding.ObjectIdentifier) ([]byte, error) {
	sum := sha256.Sum256(content)
	attributes := (&pkcs7.Attributes{ContentType: oid, MessageDigest: sum[:]}).Marshal()
	value, err := s.sign(attributes)
	if err != nil {
		return nil, err
	}
	b := cryptobyte.NewBuilder(nil)
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(pkcs7.OIDSignedData)
		b.AddASN1(explicit0, func(b *cryptobyte.Builder) {
			s.addSignedData(b, oid, content, attributes, value)
		})
	})
	return b.Bytes()
}

// signVariable returns a PKCS #7 signature of a variable: SignedData without ContentInfo, without
// content, and without signed attributes (UEFI 2.10, section 8.2.2).
func (s Signer) signVariable(content []byte) ([]byte, error) {
	value, err := s.sign(content)
	if err != nil {
		return nil, err
	}
	b := cryptobyte.NewBuilder(nil)
	s.addSignedData(b, pkcs7.OIDData, nil, nil, value)
	return b.Bytes()
}

// sign returns the signature of a text with RSA and SHA-256. It verifies the signature with the
// certificate, because a signing command can use a wrong key.
func (s Signer) sign(text []byte) ([]byte, error) {
	sum := sha256.Sum256(text)
	value, err := s.Key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	if err := s.Certificate.CheckSignature(x509.SHA256WithRSA, text, value); err != nil {
		return nil, fmt.Errorf("the signature does not match the certificate %q: %w", s.Certificate.Subject.String(), err)
	}
	return value, nil
}

// addSignedData adds SignedData with the signature value. content and attributes are optional
// (nil); attributes are a DER element of the type SET.
func (s Signer) addSignedData(b *cryptobyte.Builder, oid encoding.ObjectIdentifier, content, attributes, value []byte) {
	algorithm := func(b *cryptobyte.Builder, oid encoding.ObjectIdentifier) {
		b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oid)
			b.AddASN1NULL()
		})
	}
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1Int64(1)
		b.AddASN1(asn1.SET, func(b *cryptobyte.Builder) { algorithm(b, pkcs7.OIDDigestAlgorithmSHA256) })
		b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oid)
			if content != nil {
				b.AddASN1(explicit0, func(b *cryptobyte.Builder) {
					b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) { b.AddBytes(content) })
				})
			}
		})
		b.AddASN1(explicit0, func(b *cryptobyte.Builder) { b.AddBytes(s.Certificate.Raw) })
		b.AddASN1(asn1.SET, func(b *cryptobyte.Builder) {
			b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1Int64(1)
				b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
					b.AddBytes(s.Certificate.RawIssuer)
					b.AddASN1BigInt(s.Certificate.SerialNumber)
				})
				algorithm(b, pkcs7.OIDDigestAlgorithmSHA256)
				if attributes != nil {
					b.AddASN1(explicit0, func(b *cryptobyte.Builder) { b.AddBytes(inner(attributes)) })
				}
				algorithm(b, pkcs7.OIDEncryptionAlgorithmRSA)
				b.AddASN1OctetString(value)
			})
		})
	})
}

// inner returns the content of a DER element, without tag and length.
func inner(element []byte) []byte {
	in := cryptobyte.String(element)
	var content cryptobyte.String
	if !in.ReadAnyASN1(&content, nil) {
		panic("secureboot: the library has written an element that is not DER")
	}
	return content
}
