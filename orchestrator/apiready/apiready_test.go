package apiready

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// apiServer starts a server that answers /livez with a status, first 403. It returns the server,
// the status, which a test can change, and a Waiter for the server.
func apiServer(t *testing.T) (*httptest.Server, *atomic.Int32, *Waiter) {
	t.Helper()
	var status atomic.Int32
	status.Store(http.StatusForbidden)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, content, 0o600); err != nil {
		t.Fatal(err)
	}
	gate, err := New(server.URL, "example.com", ca)
	if err != nil {
		t.Fatal(err)
	}
	return server, &status, gate
}

// TestWaitsInTwoSteps checks that WaitServing waits for any answer, and WaitRBAC for an answer
// other than 403.
func TestWaitsInTwoSteps(t *testing.T) {
	_, status, gate := apiServer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	go gate.Run(ctx)
	if err := gate.WaitServing(ctx); err != nil {
		t.Fatalf("WaitServing does not accept the answer 403: %v", err)
	}
	short, stop := context.WithTimeout(ctx, 5*interval)
	defer stop()
	if err := gate.WaitRBAC(short); err == nil {
		t.Fatal("WaitRBAC accepts the answer 403")
	}
	status.Store(http.StatusInternalServerError) // authorized, not healthy yet
	if err := gate.WaitRBAC(ctx); err != nil {
		t.Fatal(err)
	}
}

type counted struct{ n atomic.Int32 }

func (c *counted) RoundTrip(*http.Request) (*http.Response, error) {
	c.n.Add(1)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestTransportWaitsForTheServer(t *testing.T) {
	_, _, gate := apiServer(t)
	next := &counted{}
	held := gate.WrapTransport(next)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes/", nil)
	if err != nil {
		t.Fatal(err)
	}
	passed := make(chan error, 1)
	go func() {
		_, err := held.RoundTrip(request)
		passed <- err
	}()
	select {
	case <-passed:
		t.Fatal("a request passed before Run has probed the server")
	case <-time.After(2 * interval):
	}
	go gate.Run(ctx)
	if err := <-passed; err != nil || next.n.Load() != 1 {
		t.Fatalf("%d requests passed, %v; want one", next.n.Load(), err)
	}
}

func TestWaitingRequestEndsWithItsContext(t *testing.T) {
	_, _, gate := apiServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.WrapTransport(&counted{}).RoundTrip(request); err == nil {
		t.Fatal("a request with a canceled context passed")
	}
}

func TestForeignServerIsNotAccepted(t *testing.T) {
	server, _, _ := apiServer(t)
	_, _, other := apiServer(t) // has another certificate
	other.url = server.URL
	other.client.Transport.(*http.Transport).TLSClientConfig.ServerName = "elsewhere.test"
	ctx, cancel := context.WithTimeout(context.Background(), 5*interval)
	defer cancel()
	go other.Run(ctx)
	if err := other.WaitServing(ctx); err == nil {
		t.Fatal("WaitServing accepts a server with another certificate")
	}
}
