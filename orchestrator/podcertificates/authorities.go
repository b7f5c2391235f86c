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
	// authorityLife is how long an authority lasts, and succession how old the newest is when its
	// successor is made.
	authorityLife = 90 * 24 * time.Hour
	succession    = 60 * 24 * time.Hour
	// publicity is how long a successor is believed in before it issues: by then every kubelet has
	// put it into every pod's volume.
	publicity = 24 * time.Hour
)

// Authorities are those that are believed in, the oldest first.
type Authorities []*pki.CA

// Next is who is to be believed in at a time: without those that have ended, and with a successor
// when it is due. changed says whether that is somebody else than before.
func (a Authorities) Next(cluster string, now time.Time) (next Authorities, changed bool, err error) {
	for _, ca := range a {
		if now.Before(ca.Cert.NotAfter) {
			next = append(next, ca)
		}
	}
	if len(next) > 0 && now.Before(made(next[len(next)-1]).Add(succession)) {
		return next, len(next) != len(a), nil
	}
	ca, err := pki.NewCAAt("pods of "+cluster, authorityLife, now)
	if err != nil {
		return nil, false, err
	}
	return append(next, ca), true, nil
}

// made is when an authority was made, which is some time after it begins (pki.CABackdate).
func made(ca *pki.CA) time.Time { return ca.Cert.NotBefore.Add(pki.CABackdate) }

// Issuing is the newest that everybody believes in; of those that there are, if that is none. One
// that ends before what it would issue now gives way to its successor: pods that have not read of
// that one yet will before the other one's end.
func (a Authorities) Issuing(now time.Time) *pki.CA {
	for i := len(a) - 1; i > 0; i-- {
		if !now.Before(made(a[i]).Add(publicity)) {
			return a[i]
		}
	}
	if a[0].Cert.NotAfter.Before(now.Add(longest)) {
		return a[len(a)-1]
	}
	return a[0]
}

// Bundle is the certificates in PEM.
func (a Authorities) Bundle() []byte {
	var all []*x509.Certificate
	for _, ca := range a {
		all = append(all, ca.Cert)
	}
	return pki.EncodeCerts(all...)
}

// encode is each one's certificate and key in PEM; parse reads it.
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
			return nil, fmt.Errorf("authority %d: %w", len(out)+1, err)
		}
		out, text = append(out, ca), rest
	}
	return out, nil
}
