package kubeapiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/orlop-os/orlop/orchestrator/revocation/revocationtest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// reload reloads the list, as watch does.
func reload(t *testing.T, r *revocations) {
	t.Helper()
	if err := r.file.Reload(); err != nil {
		t.Fatal(err)
	}
}

// TestRevoked checks that the revocation of a ticket invalidates the certificates that a machine
// got with this ticket, and ends the requests with these certificates. Other clients are not
// affected.
func TestRevoked(t *testing.T) {
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	request := func(ticket string) *http.Request {
		return revocationtest.Request(t, ca, pki.Spec{CN: "system:node:w", Ticket: ticket})
	}
	revoked, valid, late := request("12ab"), request("34cd"), request("56ef")
	file := filepath.Join(t.TempDir(), "revoked.json")
	if _, err := newRevocations(file); err == nil {
		t.Error("newRevocations accepts a list that does not exist")
	}
	revocationtest.Write(t, file, trust.RevokedSet{})
	r, err := newRevocations(file)
	if err != nil {
		t.Fatal(err)
	}
	anyone := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, true, nil })
	authenticates := func(request *http.Request) bool {
		_, ok, err := r.wrapAuthenticator(anyone).AuthenticateRequest(request)
		return ok && err == nil
	}
	if !authenticates(revoked) || !authenticates(valid) || !authenticates(httptest.NewRequest(http.MethodGet, "/api", nil)) {
		t.Error("a request is rejected before anything is revoked")
	}
	begun, ended := make(chan struct{}, 2), make(chan string, 2)
	watch := r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		if !authenticates(request) {
			t.Error("a request in progress is rejected before anything is revoked")
		}
		begun <- struct{}{}
		<-request.Context().Done()
		ended <- pki.TicketOf(request.TLS.PeerCertificates[0]) + ": " + context.Cause(request.Context()).Error()
	}))
	leaving, leave := context.WithCancel(t.Context())
	go watch.ServeHTTP(httptest.NewRecorder(), revoked)
	go watch.ServeHTTP(httptest.NewRecorder(), valid.WithContext(leaving))
	<-begun
	<-begun
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", At: at}}})
	reload(t, r)
	if got, want := <-ended, "12ab: your certificate was revoked at 2026-05-01T12:00:00Z (certificate 12ab)"; got != want {
		t.Errorf("ended: %s", got)
	}
	// If a certificate is revoked after its request began, but before the request is
	// authenticated, the authentication rejects the request, and track does not end it. So the
	// client gets 401 instead of a timeout.
	r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", At: at}, {Lineage: "56ef", At: at}}})
		reload(t, r)
		if authenticates(request) || request.Context().Err() != nil {
			t.Errorf("a request whose certificate was revoked before its authentication is authenticated or ended: %v", request.Context().Err())
		}
	})).ServeHTTP(httptest.NewRecorder(), late)
	if authenticates(revoked) || !authenticates(valid) {
		t.Error("the revoked certificate is accepted, or the other one is rejected")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.file.Reload(); err == nil || authenticates(revoked) {
		t.Error("Reload accepts an unreadable list, or the previous revocations are no longer effective")
	}
	leave()
	if got := <-ended; got != "34cd: context canceled" {
		t.Errorf("ended: %s", got)
	}
}
