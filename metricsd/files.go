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

// files are the files of the directory.
var files = []string{nodespec.MetricsdCert, nodespec.MetricsdKey, nodespec.MetricsCallerCAs, nodespec.Revoked, nodespec.MetricsSettingsFile}

// trusted is the content of the files at some moment; it never changes.
type trusted struct {
	server   tls.Certificate
	cas      *x509.CertPool // empty without certificates
	refused  trust.RevokedSet
	settings nodespec.MetricsSettings
}

// store keeps the credentials in sync with the files.
type store struct {
	dir string

	mu      sync.Mutex
	stamp   string // of the files of current; empty without any
	current *trusted
}

// get returns the current credentials. It reads the files only after a change. If new files are
// invalid, the old credentials stay in use, and the error says why; without any, they are nil.
func (s *store) get() (*trusted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp, err := safefile.StampAll(s.dir, files)
	if err != nil {
		return s.current, fmt.Errorf("credentials: cannot find: %w", err)
	}
	if stamp == s.stamp {
		return s.current, nil
	}
	fresh, err := load(s.dir)
	if err != nil {
		return s.current, err
	}
	s.current, s.stamp = fresh, stamp
	return fresh, nil
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

// admits reports whether a caller may connect from an address.
func (t *trusted) admits(from netip.Addr) bool {
	return len(t.settings.From) == 0 || slices.ContainsFunc(t.settings.From, func(p netip.Prefix) bool { return p.Contains(from) })
}

// readers are the roles of certificates that may read the metrics.
var readers = []string{pki.RoleReader, pki.RoleOperator, pki.RoleAdmin}

// checkCertificate returns an error if the certificates that a client has presented give no access
// now. It verifies them again, because a connection can outlast a certificate, a CA or a role.
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

// tlsConfig requires TLS 1.3. A client with a token needs no certificate; one with a certificate
// must have the key, and the certificate must be valid.
func (s *store) tlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ClientAuth: tls.VerifyClientCertIfGiven,
		// An empty pool trusts no CA; a nil pool would trust the CAs of the system.
		ClientCAs: x509.NewCertPool(),
		// a session ticket would admit a client without verification of its certificate
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
