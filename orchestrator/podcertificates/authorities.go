package podcertificates

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// caTTL is the validity of a CA, and successorAfter is the age of the newest CA at which its
	// successor is created.
	caTTL          = 90 * 24 * time.Hour
	successorAfter = 60 * 24 * time.Hour
	// distributionTime is how long a successor is trusted before it signs: by then every kubelet
	// has written it into every pod's volume.
	distributionTime = 24 * time.Hour
)

// Authorities are the trusted CAs, the oldest first.
type Authorities []*pki.CA

// Next returns the CAs to trust at a time: without expired CAs, and with a successor when it is
// due. changed reports whether the result differs from a.
func (a Authorities) Next(cluster string, now time.Time) (next Authorities, changed bool, err error) {
	for _, ca := range a {
		if now.Before(ca.Cert.NotAfter) {
			next = append(next, ca)
		}
	}
	if len(next) > 0 && now.Before(createdAt(next[len(next)-1]).Add(successorAfter)) {
		return next, len(next) != len(a), nil
	}
	ca, err := pki.NewCAAt("pods of "+cluster, caTTL, now)
	if err != nil {
		return nil, false, err
	}
	return append(next, ca), true, nil
}

// createdAt returns the creation time of a CA, which is some time after the begin of its validity
// (pki.CABackdate).
func createdAt(ca *pki.CA) time.Time { return ca.Cert.NotBefore.Add(pki.CABackdate) }

// Issuing returns the newest CA that all pods trust. Without such a CA, it returns the oldest,
// unless that expires before a certificate that it would sign now; then it returns the newest: pods
// that do not trust the newest yet will do so before the oldest expires.
func (a Authorities) Issuing(now time.Time) *pki.CA {
	for i := len(a) - 1; i > 0; i-- {
		if !now.Before(createdAt(a[i]).Add(distributionTime)) {
			return a[i]
		}
	}
	if a[0].Cert.NotAfter.Before(now.Add(maxTTL)) {
		return a[len(a)-1]
	}
	return a[0]
}

// Bundle returns the certificates as PEM.
func (a Authorities) Bundle() []byte {
	var all []*x509.Certificate
	for _, ca := range a {
		all = append(all, ca.Cert)
	}
	return pki.EncodeCerts(all...)
}

// encode returns the certificate and key of each CA as PEM; parse decodes it.
func (a Authorities) encode() []byte {
	var out []byte
	for _, ca := range a {
		out = append(append(out, ca.CertPEM()...), ca.KeyPEM()...)
	}
	return out
}

func parse(text []byte) (Authorities, error) {
	var out Authorities
	for len(text) > 0 {
		cert, rest := pem.Decode(text)
		if cert == nil {
			return nil, errors.New("no PEM")
		}
		key, rest := pem.Decode(rest)
		if key == nil {
			return nil, errors.New("a certificate without its key")
		}
		ca, err := pki.ParseCA(pem.EncodeToMemory(cert), pem.EncodeToMemory(key))
		if err != nil {
			return nil, fmt.Errorf("CA %d: %w", len(out)+1, err)
		}
		out, text = append(out, ca), rest
	}
	return out, nil
}
