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
	// caTTL is the validity of a CA. successorAfter is the age of the newest CA at which its
	// successor is created.
	caTTL          = 90 * 24 * time.Hour
	successorAfter = 60 * 24 * time.Hour
	// distributionTime is the time between the creation of a successor and its first signature. In
	// this time, every kubelet writes the successor into the volumes of its pods.
	distributionTime = 24 * time.Hour
)

// Authorities are the CAs that pods trust, the oldest first.
type Authorities []*pki.CA

// Next returns the CAs that pods have to trust at the time now. It omits expired CAs, and creates a
// successor if the newest CA is old enough. changed reports whether next differs from a.
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

// createdAt returns the creation time of a CA. The validity of a CA begins earlier, by
// pki.CABackdate.
func createdAt(ca *pki.CA) time.Time { return ca.Cert.NotBefore.Add(pki.CABackdate) }

// Issuing returns the CA that signs at the time now: the newest CA that is older than
// distributionTime, because all pods trust it. If no CA is so old, Issuing returns the oldest CA.
// But if the oldest CA would expire before a certificate that it signs now, Issuing returns the
// newest CA, although some pods may not trust it yet.
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

// Bundle returns the certificates of the CAs as PEM.
func (a Authorities) Bundle() []byte {
	var all []*x509.Certificate
	for _, ca := range a {
		all = append(all, ca.Cert)
	}
	return pki.EncodeCerts(all...)
}

// encode returns the certificate and the key of each CA as PEM. parse decodes this text.
func (a Authorities) encode() []byte {
	var out []byte
	for _, ca := range a {
		out = append(append(out, ca.CertPEM()...), ca.KeyPEM()...)
	}
	return out
}

// parse decodes the CAs from the text of encode. It returns an error for a certificate without its
// key.
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
