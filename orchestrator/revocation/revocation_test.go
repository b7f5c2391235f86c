package revocation

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/orlop-os/orlop/orchestrator/revocation/revocationtest"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestWrapAuthenticator checks that revoked clients and clients of an untrusted operator CA are
// rejected. While the file is unreadable, its last readable content stays effective.
func TestWrapAuthenticator(t *testing.T) {
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	by := func(s pki.Spec) *http.Request { return revocationtest.Request(t, ca, s) }
	path := filepath.Join(t.TempDir(), "revoked.json")
	if _, err := Open(path, nil); err == nil {
		t.Error("Open accepts a list that does not exist")
	}
	put := func(r trust.RevokedSet) { revocationtest.Write(t, path, r) }
	one, two := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	put(trust.RevokedSet{TrustedRoots: []string{one, two}})
	changes := 0
	f, err := Open(path, func() { changes++ })
	if err != nil {
		t.Fatal(err)
	}
	guard := f.WrapAuthenticator(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) { return nil, true, nil }))
	dora, emil := by(pki.Spec{CN: "dora", Lineage: "12ab", Root: one}), by(pki.Spec{CN: "emil", Lineage: "34cd", Root: two})
	server, nobody := by(pki.Spec{CN: "orlop:kube-apiserver"}), httptest.NewRequest(http.MethodGet, "/pods", nil)
	authenticates := func(want ...bool) {
		t.Helper()
		for i, request := range []*http.Request{dora, emil, server, nobody} {
			if _, ok, err := guard.AuthenticateRequest(request); ok != want[i] || (err == nil) != ok {
				t.Errorf("request %d: authenticated %v, error %v, want %v", i, ok, err, want[i])
			}
		}
	}
	authenticates(true, true, true, true)
	put(trust.RevokedSet{Revoked: []trust.Revocation{{Name: "dora"}}, TrustedRoots: []string{one, two}})
	authenticates(false, true, true, true) // the first request after the write is already rejected
	put(trust.RevokedSet{TrustedRoots: []string{one}})
	authenticates(true, false, true, true)
	if changes != 2 {
		t.Errorf("changed ran %d times, want once for each new content", changes)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); err == nil || changes != 2 {
		t.Errorf("Reload of an unreadable file returns %v; changed ran %d times, want 2", err, changes)
	}
	authenticates(true, false, true, true)
}
