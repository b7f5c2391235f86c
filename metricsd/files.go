package metricsd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// files lists the names of the files in the directory of metricsd.
var files = []string{nodespec.MetricsdCert, nodespec.MetricsdKey, nodespec.MetricsCallerCAs, nodespec.Revoked, nodespec.MetricsSettingsFile}

// trusted is the parsed content of the files at one time. It is immutable.
type trusted struct {
	server   tls.Certificate
	cas      *x509.CertPool // CAs of the callers; empty if certificates are not admitted
	refused  trust.RevokedSet
	settings nodespec.MetricsSettings
}

// store has the credentials of the files, and reloads changed files.
type store struct {
	dir string

	mu      sync.Mutex
	stamp   string // stamp of the files at the last load
	failure error  // error of the last load
	current *trusted
}

// get returns the current credentials. It reads the files only if their stamps have changed. If the
// new files are invalid, get returns the previous credentials and an error. The credentials are nil
// if no valid files were ever read.
func (s *store) get() (*trusted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp, err := safefile.StampAll(s.dir, files)
	if err != nil {
		return s.current, fmt.Errorf("credentials: cannot find: %w", err)
	}
	if stamp == s.stamp {
		return s.current, s.failure
	}
	fresh, err := load(s.dir)
	s.stamp, s.failure = stamp, err
	if err == nil {
		s.current = fresh
	}
	return s.current, err
}

func load(dir string) (*trusted, error) {
	texts, err := safefile.ReadAll(dir, files)
	if err != nil {
		return nil, fmt.Errorf("credentials: cannot read: %w", err)
	}
	t := &trusted{cas: x509.NewCertPool()}
	if t.server, err = tls.X509KeyPair(texts[nodespec.MetricsdCert], texts[nodespec.MetricsdKey]); err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s with %s: %w", nodespec.MetricsdCert, nodespec.MetricsdKey, err)
	}
	if err := json.Unmarshal(texts[nodespec.MetricsSettingsFile], &t.settings); err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s: %w", nodespec.MetricsSettingsFile, err)
	}
	if err := json.Unmarshal(texts[nodespec.Revoked], &t.refused); err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s: %w", nodespec.Revoked, err)
	}
	if len(texts[nodespec.MetricsCallerCAs]) == 0 || !t.settings.Certificates {
		return t, nil
	}
	cas, err := pki.ParseCerts(texts[nodespec.MetricsCallerCAs])
	if err != nil {
		return nil, fmt.Errorf("credentials: cannot use %s: %w", nodespec.MetricsCallerCAs, err)
	}
	for _, ca := range cas {
		t.cas.AddCert(ca)
	}
	return t, nil
}

// admits reports whether the settings permit connections from an address.
func (t *trusted) admits(from netip.Addr) bool {
	return len(t.settings.From) == 0 || slices.ContainsFunc(t.settings.From, func(p netip.Prefix) bool { return p.Contains(from) })
}

// readers are the roles in a certificate that may read the metrics.
var readers = []string{pki.RoleReader, pki.RoleOperator, pki.RoleAdmin}

// checkCertificate returns an error if the certificates of a client give no access at present. The
// TLS handshake has verified them, but a connection can outlast the validity of a certificate, a CA
// or a role.
func (t *trusted) checkCertificate(presented []*x509.Certificate) error {
	if !t.settings.Certificates {
		return errors.New("this machine accepts no certificates here (Machine.spec.metrics.callers)")
	}
	between := x509.NewCertPool()
	for _, c := range presented[1:] {
		between.AddCert(c)
	}
	leaf := presented[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: t.cas, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("the certificate is not valid here: %w", err)
	}
	if err := t.refused.Check(leaf); err != nil {
		return err
	}
	if !slices.ContainsFunc(readers, func(role string) bool { return slices.Contains(leaf.Subject.Organization, role) }) {
		return fmt.Errorf("the certificate has no role that may read metrics; ask for one with O=%s", pki.RoleReader)
	}
	return nil
}

// tlsConfig requires TLS 1.3. A client with a token needs no certificate. If a client presents a
// certificate, the handshake verifies it.
func (s *store) tlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ClientAuth: tls.VerifyClientCertIfGiven,
		// An empty pool trusts no CA; a nil pool would trust the CAs of the system.
		ClientCAs: x509.NewCertPool(),
		// with a session ticket, a client would be admitted without the verification of its
		// certificate
		SessionTicketsDisabled: true,
	}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current, err := s.get()
		if current == nil {
			return nil, err
		}
		config := base.Clone()
		config.GetConfigForClient = nil
		config.Certificates, config.ClientCAs = []tls.Certificate{current.server}, current.cas
		return config, nil
	}
	return base
}
