package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"
)

// ClockView is the knowledge of the time with which a client checks the certificates of a server.
type ClockView struct {
	Now   time.Time
	Floor time.Time // a time that has certainly passed
	// Unknown reports that the clock is to be synchronized, and was not yet since boot.
	Unknown bool
}

// at returns the time at which to check certificates.
func (v ClockView) at(chain []*x509.Certificate) time.Time {
	if v.Unknown {
		return earliestTime(chain, v.Floor)
	}
	return v.Now
}

// ServerCAs are the CAs that certify a server outside the cluster.
type ServerCAs struct {
	Own  string // of this server, PEM; empty: the public CAs of the image
	Site string // of the site, PEM; trusted, too
}

// Roots returns the certificates of the CAs, or nil for the public CAs of the image alone. A text
// without a usable certificate trusts no CA.
func (c ServerCAs) Roots() *x509.CertPool {
	if c == (ServerCAs{}) {
		return nil
	}
	roots := x509.NewCertPool()
	if c.Own == "" {
		if system, err := x509.SystemCertPool(); err == nil { // otherwise the system has none
			roots = system
		}
	}
	roots.AppendCertsFromPEM([]byte(c.Own))
	roots.AppendCertsFromPEM([]byte(c.Site))
	return roots
}

// InFile returns the CAs for a program that trusts the CAs of a single file, in PEM; empty for the
// public CAs of the image alone, which publicCAs are.
func (c ServerCAs) InFile(publicCAs string) string {
	if c.Own == "" && c.Site != "" {
		return publicCAs + c.Site
	}
	return c.Own + c.Site
}

// ClientConfig returns the configuration of a TLS client. The server needs a certificate of roots
// (nil for the public CAs of the image) for a name or an address, at the time that clock tells.
func ClientConfig(name string, roots *x509.CertPool, clock func() ClockView) *tls.Config {
	return &tls.Config{
		ServerName: name, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection does it, at a time of its own
		VerifyConnection: func(s tls.ConnectionState) error {
			return VerifyServer(s.PeerCertificates, roots, name, clock().at(s.PeerCertificates))
		},
	}
}

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

// earliestTime returns the earliest time after floor at which certificates can be valid. It stands
// for the time while the clock is unknown: a certificate that had expired at floor is invalid, and
// a certificate that begins later is valid.
func earliestTime(chain []*x509.Certificate, floor time.Time) time.Time {
	for _, c := range chain {
		if c.NotBefore.After(floor) {
			floor = c.NotBefore
		}
	}
	return floor
}
