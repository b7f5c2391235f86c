package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"time"
)

// ClockView is the knowledge of a machine about the time, for the verification of server
// certificates.
type ClockView struct {
	Now   time.Time // time of the clock
	Floor time.Time // a time that has certainly passed
	// Unknown means that the machine still waits for the first synchronization of its clock after
	// boot.
	Unknown bool
}

// The method at returns the time at which to verify a chain: Now, or the earliest possible time if
// Now is unknown.
func (v ClockView) at(chain []*x509.Certificate) time.Time {
	if v.Unknown {
		return earliestTime(chain, v.Floor)
	}
	return v.Now
}

// ServerCAs are the CAs that the machine trusts for a server outside the cluster.
type ServerCAs struct {
	Own  string // CAs of this server, PEM; empty for the public CAs of the image
	Site string // further CAs, of the site, PEM
}

// Roots returns the certificates of the CAs. It returns nil if only the public CAs of the image are
// trusted. A text without a certificate adds no CA.
func (c ServerCAs) Roots() *x509.CertPool {
	if c == (ServerCAs{}) {
		return nil
	}
	roots := x509.NewCertPool()
	if c.Own == "" {
		if system, err := x509.SystemCertPool(); err == nil { // the image may have no public CAs
			roots = system
		}
	}
	roots.AppendCertsFromPEM([]byte(c.Own))
	roots.AppendCertsFromPEM([]byte(c.Site))
	return roots
}

// InFile returns the CAs in PEM for a program that reads all its CAs from a single file. publicCAs
// are the public CAs of the image in PEM. InFile returns an empty text if only the public CAs are
// trusted.
func (c ServerCAs) InFile(publicCAs string) string {
	if c.Own == "" && c.Site != "" {
		return publicCAs + c.Site
	}
	return c.Own + c.Site
}

// ClientConfig returns the configuration of a TLS client. It accepts a server with a certificate
// for name, a DNS name or an address, from a CA in roots (nil for the public CAs of the image). The
// certificate must be valid at the time of clock.
func ClientConfig(name string, roots *x509.CertPool, clock func() ClockView) *tls.Config {
	return &tls.Config{
		ServerName: name, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection verifies the chain, at the time of clock
		VerifyConnection: func(s tls.ConnectionState) error {
			return VerifyServer(s.PeerCertificates, roots, name, clock().at(s.PeerCertificates))
		},
	}
}

// VerifyServer verifies the certificates that a TLS server has sent, with its own certificate
// first. name is a DNS name or an address of the server. If roots is nil, the public CAs of the
// image are trusted.
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

// earliestTime returns floor, or the latest NotBefore in the chain if this is later than floor. The
// client uses the result as the present time while the clock is unknown. So a certificate that
// expired before floor is invalid, and a certificate that becomes valid after floor is valid.
func earliestTime(chain []*x509.Certificate, floor time.Time) time.Time {
	for _, c := range chain {
		if c.NotBefore.After(floor) {
			floor = c.NotBefore
		}
	}
	return floor
}
