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
		return revocationtest.Request(t, ca, pki.Spec{CN: "system:node:w", Ticket: ticket})
	}
	out, in, late := request("12ab"), request("34cd"), request("56ef")
	file := filepath.Join(t.TempDir(), "revoked.json")
	if _, err := newRevocations(file); err == nil {
		t.Error("a list that is missing is no list")
	}
	revocationtest.Write(t, file, trust.RevokedSet{})
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
	revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", At: at}}})
	look(t, r)
	if got, want := <-ended, "12ab: your certificate was revoked at 2026-05-01T12:00:00Z (certificate 12ab)"; got != want {
		t.Errorf("ended: %s", got)
	}
	// A request that began before its authentication is rejected, not ended: the client gets 401
	// instead of a timeout.
	r.track(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		revocationtest.Write(t, file, trust.RevokedSet{Revoked: []trust.Revocation{{Lineage: "12ab", At: at}, {Lineage: "56ef", At: at}}})
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
