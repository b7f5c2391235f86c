package secureboot

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/secureboot"
)

// Files are the contents of the files of a set of keys, by file name.
type Files map[string][]byte

// names are the names of the keys, in the order of their trust: PK signs changes of KEK, and KEK
// signs changes of db.
var names = []string{"PK", "KEK", "db"}

// bits is the size of the keys. UEFI requires that firmware supports RSA with 2048 bits (UEFI 2.10,
// section 32.4.1); longer keys are optional.
const bits = 2048

// NewKeys makes the keys of a site. For each of PK, KEK and db, it returns the private key NAME.key
// and the certificate NAME.crt (both PEM), and the enrollment file NAME.auth. db.auth also has the
// certificates in others, for example of the makers of network cards. Firmware then starts their
// images, too. at is the time of the certificates and of the enrollment.
func NewKeys(site string, others []*x509.Certificate, at time.Time) (Files, error) {
	files, signers := Files{}, map[string]Signer{}
	for _, name := range names {
		s, key, err := newSigner(site+" "+name, at)
		if err != nil {
			return nil, err
		}
		signers[name] = s
		files[name+".key"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
		files[name+".crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate.Raw})
	}
	return files, enroll(files, signers, others, at)
}

// enroll adds the enrollment files for the certificates of the signers to files.
func enroll(files Files, signers map[string]Signer, others []*x509.Certificate, at time.Time) error {
	owner := ownerOf(signers["PK"].Certificate)
	for _, name := range names {
		by := signers["PK"]
		content := List(signers[name].Certificate.Raw, owner)
		if name == "db" {
			by = signers["KEK"]
			for _, c := range others {
				content = append(content, List(c.Raw, owner)...)
			}
		}
		file, err := by.Enroll(name, content, at)
		if err != nil {
			return err
		}
		files[name+".auth"] = file
	}
	return nil
}

// ownerOf returns the owner GUID of the site in signature lists. It depends only on the certificate
// of PK.
func ownerOf(pk *x509.Certificate) secureboot.GUID {
	return secureboot.GUID(uuid.NewSHA1(uuid.NameSpaceX500, pk.Raw))
}

// newSigner makes an RSA key and its certificate, which the key itself signs. It also returns the
// key as PKCS #8 (DER).
func newSigner(name string, at time.Time) (s Signer, pkcs8 []byte, err error) {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		return s, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return s, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name}, NotBefore: at.UTC().Truncate(time.Second),
		// Firmware does not check the validity period. The year 9999 means "no expiry" (RFC 5280,
		// 4.1.2.5).
		NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), SignatureAlgorithm: x509.SHA256WithRSA,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return s, nil, err
	}
	if s.Certificate, err = x509.ParseCertificate(der); err != nil {
		return s, nil, err
	}
	s.Key = key
	pkcs8, err = x509.MarshalPKCS8PrivateKey(key)
	return s, pkcs8, err
}

// ParseCertificate parses a PEM file with a single certificate. It fails if the file has other
// content, or if the key of the certificate is not RSA.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("one certificate (PEM) expected")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	if c.PublicKeyAlgorithm != x509.RSA {
		return nil, fmt.Errorf("the key of the certificate %q is %s; firmware supports RSA", c.Subject.String(), c.PublicKeyAlgorithm)
	}
	return c, nil
}
