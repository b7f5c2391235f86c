package secureboot

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	encoding "encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// Object identifiers of a signature (RFC 2315; Microsoft, "Windows Authenticode Portable Executable
// Signature Format").
var (
	oidSignedData    = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	oidMessageDigest = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}
	oidSHA256        = encoding.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	oidRSA           = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	oidSHA256RSA     = encoding.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	oidIndirectData  = encoding.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 2, 1, 4}
)

// maxCertificates is the maximum number of certificates in a signature.
const maxCertificates = 16

// signature is a parsed Authenticode signature.
type signature struct {
	digest       []byte   // digest of the image
	content      []byte   // signed content, without its tag and length
	attributes   []byte   // signed attributes, as a SET; nil if there are none
	attested     []byte   // digest of the content that the attributes contain
	value        []byte   // RSA signature of the attributes or of the content
	issuer       []byte   // issuer of the certificate of the signer, as DER
	serial       *big.Int // serial number of the certificate of the signer
	certificates []*x509.Certificate
}

var errSignature = errors.New("it is not an Authenticode signature with RSA and SHA-256")

// Tags of the optional fields.
var (
	explicit0 = asn1.Tag(0).Constructed().ContextSpecific()
	explicit1 = asn1.Tag(1).Constructed().ContextSpecific()
)

// parseSignature parses a PKCS #7 signature (DER) over the digest of an image.
func parseSignature(der []byte) (signature, error) {
	var info, wrapped, signed, algorithms, content, signers cryptobyte.String
	var oid encoding.ObjectIdentifier
	var version int
	in := cryptobyte.String(der)
	if !in.ReadASN1(&info, asn1.SEQUENCE) || !info.ReadASN1ObjectIdentifier(&oid) || !oid.Equal(oidSignedData) ||
		!info.ReadASN1(&wrapped, explicit0) || !wrapped.ReadASN1(&signed, asn1.SEQUENCE) ||
		!signed.ReadASN1Integer(&version) || !signed.ReadASN1(&algorithms, asn1.SET) || !signed.ReadASN1(&content, asn1.SEQUENCE) {
		return signature{}, errSignature
	}
	var s signature
	if err := s.parseContent(content); err != nil {
		return s, err
	}
	if err := s.parseCertificates(&signed); err != nil {
		return s, err
	}
	if !signed.SkipOptionalASN1(explicit1) || !signed.ReadASN1(&signers, asn1.SET) {
		return s, errSignature
	}
	return s, s.parseSigner(&signers)
}

// parseContent parses the signed content, an SpcIndirectDataContent.
func (s *signature) parseContent(content cryptobyte.String) error {
	var oid encoding.ObjectIdentifier
	var wrapped, data, image, digest, value cryptobyte.String
	if !content.ReadASN1ObjectIdentifier(&oid) || !oid.Equal(oidIndirectData) || !content.ReadASN1(&wrapped, explicit0) || !wrapped.ReadASN1(&data, asn1.SEQUENCE) {
		return errSignature
	}
	s.content = data
	if !data.ReadASN1(&image, asn1.SEQUENCE) || !data.ReadASN1(&digest, asn1.SEQUENCE) || !readAlgorithm(&digest, oidSHA256) ||
		!digest.ReadASN1(&value, asn1.OCTET_STRING) || len(value) != sha256.Size {
		return errSignature
	}
	s.digest = value
	return nil
}

// parseCertificates parses the optional field with certificates.
func (s *signature) parseCertificates(signed *cryptobyte.String) error {
	var all cryptobyte.String
	var present bool
	if !signed.ReadOptionalASN1(&all, &present, explicit0) {
		return errSignature
	}
	for !all.Empty() {
		var der cryptobyte.String
		if !all.ReadASN1Element(&der, asn1.SEQUENCE) || len(s.certificates) == maxCertificates {
			return errSignature
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("a certificate of the signature cannot be parsed: %w", err)
		}
		s.certificates = append(s.certificates, certificate)
	}
	return nil
}

// parseSigner parses the SignerInfo. It fails if there is more than one.
func (s *signature) parseSigner(signers *cryptobyte.String) error {
	var signer, name, issuer, attributes, value cryptobyte.String
	var version int
	var signed bool
	s.serial = new(big.Int)
	if !signers.ReadASN1(&signer, asn1.SEQUENCE) || !signers.Empty() || !signer.ReadASN1Integer(&version) ||
		!signer.ReadASN1(&name, asn1.SEQUENCE) || !name.ReadASN1Element(&issuer, asn1.SEQUENCE) || !name.ReadASN1Integer(s.serial) ||
		!readAlgorithm(&signer, oidSHA256) || !signer.ReadOptionalASN1(&attributes, &signed, explicit0) ||
		!readAlgorithm(&signer, oidRSA, oidSHA256RSA) || !signer.ReadASN1(&value, asn1.OCTET_STRING) {
		return errSignature
	}
	s.issuer, s.value = issuer, value
	if !signed {
		return nil
	}
	b := cryptobyte.NewBuilder(nil)
	b.AddASN1(asn1.SET, func(b *cryptobyte.Builder) { b.AddBytes(attributes) })
	s.attributes = b.BytesOrPanic()
	for !attributes.Empty() {
		var attribute, values, digest cryptobyte.String
		var oid encoding.ObjectIdentifier
		if !attributes.ReadASN1(&attribute, asn1.SEQUENCE) || !attribute.ReadASN1ObjectIdentifier(&oid) || !attribute.ReadASN1(&values, asn1.SET) {
			return errSignature
		}
		if !oid.Equal(oidMessageDigest) {
			continue
		}
		if s.attested != nil || !values.ReadASN1(&digest, asn1.OCTET_STRING) || !values.Empty() {
			return errSignature
		}
		s.attested = digest
	}
	return nil
}

// readAlgorithm reads an AlgorithmIdentifier. It reports whether the algorithm is one of the
// allowed algorithms, and has no parameters or NULL.
func readAlgorithm(from *cryptobyte.String, allowed ...encoding.ObjectIdentifier) bool {
	var algorithm cryptobyte.String
	var oid encoding.ObjectIdentifier
	if !from.ReadASN1(&algorithm, asn1.SEQUENCE) || !algorithm.ReadASN1ObjectIdentifier(&oid) {
		return false
	}
	if !algorithm.Empty() {
		var null cryptobyte.String
		if !algorithm.ReadASN1(&null, asn1.NULL) || !null.Empty() || !algorithm.Empty() {
			return false
		}
	}
	return slices.ContainsFunc(allowed, oid.Equal)
}

// isBy reports whether a certificate belongs to the signer.
func (s *signature) isBy(c *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, s.issuer) && c.SerialNumber.Cmp(s.serial) == 0
}

// check returns an error if the signature is not valid for the certificate of the signer, or not
// for the digest of the image.
func (s *signature) check(signer *x509.Certificate, image [sha256.Size]byte) error {
	if !bytes.Equal(s.digest, image[:]) {
		return errors.New("the signature is for another content of the image")
	}
	signed := s.content
	if s.attributes != nil {
		if sum := sha256.Sum256(s.content); !bytes.Equal(s.attested, sum[:]) {
			return errors.New("the signed attributes are for another content")
		}
		signed = s.attributes
	}
	if err := signer.CheckSignature(x509.SHA256WithRSA, signed, s.value); err != nil {
		return fmt.Errorf("the signature does not match its certificate: %w", err)
	}
	return nil
}
