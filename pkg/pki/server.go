package pki

import (
	"crypto/x509"
	"errors"
	"time"
)

// VerifyServer checks the certificates that a TLS server has sent, its own first, for a name or an
// address at a time. The roots nil are the public CAs of the image.
func VerifyServer(chain []*x509.Certificate, roots *x509.CertPool, name string, at time.Time) error {
	if len(chain) == 0 {
		return errors.New("the server has no certificate")
	}
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		DNSName: name, Roots: roots, Intermediates: others, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// EarliestTime returns the earliest time after floor at which certificates can be valid. It stands
// for the time while the clock is unknown: a certificate that had expired at floor is invalid, and
// a certificate that begins later is valid.
func EarliestTime(chain []*x509.Certificate, floor time.Time) time.Time {
	for _, c := range chain {
		if c.NotBefore.After(floor) {
			floor = c.NotBefore
		}
	}
	return floor
}
