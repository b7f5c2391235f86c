package kubeapiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// list writes revocations into a file, as machined does.
func list(t *testing.T, file string, all ...trust.Revocation) {
	t.Helper()
	text, err := json.Marshal(trust.RevokedSet{Revoked: all})
	if err == nil {
		err = renameio.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// look reloads the list, as watch does.
func look(t *testing.T, r *revocations) {
	t.Helper()
	if err := r.file.Reload(); err != nil {
		t.Fatal(err)
	}
}

// TestRevoked checks that the revocation of a ticket invalidates the certificates that a machine
// got by it and ends its requests, without an effect on other clients.
func TestRevoked(t *testing.T) {
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	request := func(ticket string) *http.Request {
		leaf, err := ca.Issue(pki.Spec{CN: "system:node:w", Usage: pki.Client, TTL: time.Hour, Ticket: ticket})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/api", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf.Cert}}
		return r
	}
	out, in, late := request("12ab"), request("34cd"), request("56ef")
	file := filepath.Join(t.TempDir(), "revoked.json")
	if _, err := newRevocations(file); err == nil {
		t.Error("a list that is missing is no list")
	}
	list(t, file)
	r, err := newRevocations(file)
	if err != nil {
		t.Fatal(err)
	}
	asked := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, true, nil })
	lets := func(request *http.Request) bool {
		_, ok, err := r.wrapAuthenticator(asked).AuthenticateRequest(request)
		return ok && err == nil
	}
	if !lets(out) || !lets(in) || !lets(httptest.NewRequest(http.MethodGet, "/api", nil)) {
		t.Error("nothing is revoked")
	}
	begun, ended := make(chan struct{}, 2), make(chan string, 2)
	watch := r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		if !lets(request) {
			t.Error("a request is rejected before anything is revoked")
		}
		begun <- struct{}{}
		<-request.Context().Done()
		ended <- pki.TicketOf(request.TLS.PeerCertificates[0]) + ": " + context.Cause(request.Context()).Error()
	}))
	leaving, leave := context.WithCancel(t.Context())
	go watch.ServeHTTP(httptest.NewRecorder(), out)
	go watch.ServeHTTP(httptest.NewRecorder(), in.WithContext(leaving))
	<-begun
	<-begun
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	list(t, file, trust.Revocation{Lineage: "12ab", At: at})
	look(t, r)
	if got, want := <-ended, "12ab: your certificate was revoked at 2026-05-01T12:00:00Z (certificate 12ab)"; got != want {
		t.Errorf("ended: %s", got)
	}
	// A request that began before its authentication is rejected, not ended: the client gets 401
	// instead of a timeout.
	r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		list(t, file, trust.Revocation{Lineage: "12ab", At: at}, trust.Revocation{Lineage: "56ef", At: at})
		look(t, r)
		if lets(request) || request.Context().Err() != nil {
			t.Errorf("a certificate that is revoked between the connection and authentication: %v", request.Context().Err())
		}
	})).ServeHTTP(httptest.NewRecorder(), late)
	if lets(out) || !lets(in) {
		t.Error("the one that was revoked is let in, or the other is not")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.file.Reload(); err == nil || lets(out) {
		t.Error("a list that cannot be read does not leave it as it was")
	}
	leave()
	if got := <-ended; got != "34cd: context canceled" {
		t.Errorf("ended: %s", got)
	}
}
