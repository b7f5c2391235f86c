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

type said struct {
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
	heard := make(chan said, 10)
	go Check{Component: "x", URL: server.URL}.Watch(ctx, func(_ string, ready bool, detail string) { heard <- said{ready, detail} })
	select {
	case s := <-heard:
		t.Fatalf("announced %+v while it starts", s)
	case <-time.After(3 * starting):
	}
	healthy.Store(true)
	if s := <-heard; !s.ready {
		t.Fatalf("announced %+v, want ready", s)
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

// TestCAReload checks that Watch reloads CAFile when the file changes.
func TestCAReload(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	stranger, err := pki.NewCA("stranger", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	check := Check{Component: "x", URL: server.URL, CAFile: filepath.Join(t.TempDir(), "ca.crt"), Name: "example.com"}
	var client *http.Client
	var believed []byte
	for _, c := range []struct {
		ca   []byte
		well bool
	}{{pki.EncodeCert(server.Certificate()), true}, {stranger.CertPEM(), false}, {pki.EncodeCerts(stranger.Cert, server.Certificate()), true}} {
		if err := os.WriteFile(check.CAFile, c.ca, 0o600); err != nil {
			t.Fatal(err)
		}
		if client, believed, err = check.client(client, believed); err != nil {
			t.Fatal(err)
		}
		if problem := check.probe(t.Context(), client); (problem == "") != c.well {
			t.Errorf("with %d bytes of authorities: %q", len(c.ca), problem)
		}
		if again, _, err := check.client(client, believed); err != nil || again != client {
			t.Errorf("another client without need, %v", err)
		}
	}
}
