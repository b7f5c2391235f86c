package secureboot

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxChain is the maximum number of certificates in a chain from a signer to a certificate in a
// database.
const maxChain = 8

// database is a parsed signature database: db or dbx.
type database struct {
	raw          [][]byte            // certificates (DER)
	certificates []*x509.Certificate // raw, without the certificates that cannot be parsed
	images       [][]byte            // digests of images
	signers      [][]byte            // dbx only: digests of the signed part of certificates
}

// parseDatabase parses the content of the variable db or dbx.
func parseDatabase(name string, content []byte) (d database, err error) {
	entries, err := ParseLists(content)
	if err != nil {
		return d, fmt.Errorf("variable %s: %w", name, err)
	}
	for _, e := range entries {
		switch e.Type {
		case TypeX509:
			d.raw = append(d.raw, e.Data)
			if c, err := x509.ParseCertificate(e.Data); err == nil { // others match by their bytes
				d.certificates = append(d.certificates, c)
			}
		case TypeSHA256:
			d.images = append(d.images, e.Data)
		case typeX509SHA256:
			if name == "dbx" {
				d.signers = append(d.signers, e.Data[:min(len(e.Data), sha256.Size)])
			}
		}
	}
	return d, nil
}

// anchor follows the chain from a signer to its issuers. It returns the first certificate of the
// chain that is in the database, as a whole or by its digest; nil if there is none. An issuer can
// be in the signature (embedded) or in the database.
func (d database) anchor(signer *x509.Certificate, embedded []*x509.Certificate) *x509.Certificate {
	known := slices.Concat(embedded, d.certificates)
	for c, n := signer, 0; c != nil && n < maxChain; c, n = issuer(c, known), n+1 {
		sum := sha256.Sum256(c.RawTBSCertificate)
		if contains(d.raw, c.Raw) || contains(d.signers, sum[:]) {
			return c
		}
	}
	return nil
}

func contains(all [][]byte, one []byte) bool {
	return slices.ContainsFunc(all, func(a []byte) bool { return bytes.Equal(a, one) })
}

// Accept checks an image of a size in bytes. It returns an error if firmware with these databases
// would not start the image. db and dbx are the contents of the variables without their attributes.
// Accept decides as EDK II does (DxeImageVerificationLib), for signatures with RSA and SHA-256,
// which the imager makes. The first row that matches decides:
//
//	the digest of the image is in dbx                        refused
//	the signer, or an issuer of the signer, is in dbx        refused
//	the signer, or an issuer of the signer, is in db         accepted
//	the digest of the image is in db                         accepted
//	otherwise                                                refused
//
// The validity periods of certificates have no effect, because firmware has no reliable clock.
func Accept(from io.ReaderAt, size int64, db, dbx []byte) error {
	accepted, err := parseDatabase("db", db)
	if err != nil {
		return err
	}
	revoked, err := parseDatabase("dbx", dbx)
	if err != nil {
		return err
	}
	image, err := ParseImage(from, size)
	if err != nil {
		return err
	}
	if contains(revoked.images, image.Digest[:]) {
		return errors.New("the digest of the boot image is in dbx, the list of revocations")
	}
	trusted, signers := false, []string(nil)
	for _, der := range image.Signatures {
		who, ok, err := acceptSignature(der, image.Digest, accepted, revoked)
		if err != nil {
			return err
		}
		trusted, signers = trusted || ok, append(signers, who)
	}
	switch {
	case trusted, contains(accepted.images, image.Digest[:]):
		return nil
	case len(signers) == 0:
		return fmt.Errorf("the boot image has no signature; %s", accepted)
	}
	return fmt.Errorf("the boot image is signed by %s, which no certificate in db accepts; %s", strings.Join(signers, " and "), accepted)
}

// acceptSignature reports whether db accepts a signature, and describes its signer. It does not
// accept an invalid signature. It returns an error if the signer is revoked, because the firmware
// then refuses the image even if another signature is valid.
func acceptSignature(der []byte, image [sha256.Size]byte, db, dbx database) (who string, trusted bool, err error) {
	s, err := parseSignature(der)
	if err != nil {
		return fmt.Sprintf("an unknown signer (%v)", err), false, nil
	}
	known := slices.Concat(s.certificates, db.certificates)
	at := slices.IndexFunc(known, s.isBy)
	if at < 0 {
		return "a certificate that the signature does not contain", false, nil
	}
	signer := known[at]
	who = fmt.Sprintf("%q (%s)", signer.Subject.String(), Fingerprint(signer.Raw))
	if err := s.check(signer, image); err != nil {
		return fmt.Sprintf("%s (%v)", who, err), false, nil
	}
	if c := dbx.anchor(signer, s.certificates); c != nil {
		return "", false, fmt.Errorf("the certificate %q (%s) of the boot image is in dbx, the list of revocations", c.Subject.String(), Fingerprint(c.Raw))
	}
	return who, db.anchor(signer, s.certificates) != nil, nil
}

// issuer returns the issuer of a certificate; nil if known does not contain it, or if the
// certificate is self-signed.
func issuer(c *x509.Certificate, known []*x509.Certificate) *x509.Certificate {
	for _, candidate := range known {
		if !candidate.Equal(c) && bytes.Equal(candidate.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(candidate) == nil {
			return candidate
		}
	}
	return nil
}

// String describes the database db by the fingerprints of its certificates.
func (d database) String() string {
	if len(d.raw) == 0 {
		return "db has no certificate"
	}
	var all []string
	for _, der := range d.raw {
		all = append(all, Fingerprint(der))
	}
	return "db has " + strings.Join(all, ", ")
}
