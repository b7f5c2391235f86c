package health

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

type announcement struct {
	ready  bool
	detail string
}

func TestWatchAnnouncesFirstSuccess(t *testing.T) {
	var healthy atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !healthy.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			w.Write([]byte("[+]ping ok\n[-]poststarthook/x failed: reason withheld\n"))
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	announcements := make(chan announcement, 10)
	go Check{Component: "x", URL: server.URL}.Watch(ctx, func(_ string, ready bool, detail string) { announcements <- announcement{ready, detail} })
	select {
	case s := <-announcements:
		t.Fatalf("Watch announced %+v while the component starts", s)
	case <-time.After(3 * starting):
	}
	healthy.Store(true)
	if s := <-announcements; !s.ready {
		t.Fatalf("Watch announced %+v, want ready", s)
	}
}

func TestProbe(t *testing.T) {
	body := "[+]ping ok\n[-]etcd failed: reason withheld\n[-]later failed\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte(body))
	}))
	check := Check{Component: "x", URL: server.URL}
	want := "500 Internal Server Error: etcd failed: reason withheld"
	if got := check.probe(context.Background(), http.DefaultClient); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	server.Close()
	if got := check.probe(context.Background(), http.DefaultClient); got == "" {
		t.Error("a component that does not listen is healthy")
	}
}

// TestCAReload checks that the client trusts the CAs that are now in CAFile, and that it is
// replaced only when the file changes.
func TestCAReload(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	other, err := pki.NewCA("other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	check := Check{Component: "x", URL: server.URL, CAFile: filepath.Join(t.TempDir(), "ca.crt"), Name: "example.com"}
	var client *http.Client
	var loaded []byte
	for _, c := range []struct {
		ca      []byte
		healthy bool
	}{{pki.EncodeCert(server.Certificate()), true}, {other.CertPEM(), false}, {pki.EncodeCerts(other.Cert, server.Certificate()), true}} {
		if err := os.WriteFile(check.CAFile, c.ca, 0o600); err != nil {
			t.Fatal(err)
		}
		if client, loaded, err = check.client(client, loaded); err != nil {
			t.Fatal(err)
		}
		if problem := check.probe(t.Context(), client); (problem == "") != c.healthy {
			t.Errorf("with a CA file of %d bytes: %q", len(c.ca), problem)
		}
		if again, _, err := check.client(client, loaded); err != nil || again != client {
			t.Errorf("the client is replaced, although the file is unchanged: %v", err)
		}
	}
}
