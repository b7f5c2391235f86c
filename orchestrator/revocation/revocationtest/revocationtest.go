// Package revocationtest provides client requests and the file of package revocation for tests.
package revocationtest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Request returns a request of a client. The certificate of the client is new and signed by ca.
func Request(t *testing.T, ca *pki.CA, s pki.Spec) *http.Request {
	t.Helper()
	s.Usage, s.TTL = pki.Client, time.Hour
	leaf, err := ca.Issue(s)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf.Cert}}
	return r
}

// Write writes the file of revocations, as machined does.
func Write(t *testing.T, path string, set trust.RevokedSet) {
	t.Helper()
	text, err := json.Marshal(set)
	if err == nil {
		err = renameio.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
