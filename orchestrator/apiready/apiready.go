// Package apiready reports when the API server can be used. Components start at once and wait for
// it, instead of failing and backing off for seconds.
//
// Two moments matter: the server answers at all (a kubelet can register), and the RBAC rights exist
// (controllers may act). The Waiter requests the health of the server, because this request needs
// no credentials. Any answer shows the first moment. The server permits the request only once all
// rights exist, because the right to read health is created last of all (kubeapiserver/rights.go).
// The server reports itself ready a second later still; the Waiter does not wait for that. It polls
// at short intervals, because a process cannot wait for another process to open its socket; a
// request to a closed port costs microseconds.
package apiready

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// interval is the time between two probes, and so the longest delay of a waiting component. 7
// requests a second to a closed port take less than a thousandth of a processor.
const interval = 150 * time.Millisecond

// Waiter watches an API server until it can be used. Make it with New and start Run.
type Waiter struct {
	url     string
	client  *http.Client
	serving chan struct{}
	rights  chan struct{}
	once    sync.Once
}

// New returns a Waiter for the server at url (https://host:port). The CA in caFile must have issued
// the certificate of the server for serverName, or for the host of the URL if serverName is empty.
func New(url, serverName, caFile string) (*Waiter, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("API server: cannot check its certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: cannot use: it contains no certificate", caFile)
	}
	return &Waiter{
		url: strings.TrimSuffix(url, "/"),
		client: &http.Client{
			Timeout:   2 * time.Second, // of one probe; an overloaded server is probed again
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName}, ForceAttemptHTTP2: false},
		},
		serving: make(chan struct{}),
		rights:  make(chan struct{}),
	}, nil
}

// Run polls until the rights exist or ctx is done. Calls after the first do nothing.
func (g *Waiter) Run(ctx context.Context) {
	g.once.Do(func() {
		defer g.client.CloseIdleConnections()
		answers := func(int) bool { return true }
		// Both statuses show that the request was authorized, even if the server is unhealthy.
		allowed := func(status int) bool {
			return status == http.StatusOK || status == http.StatusInternalServerError
		}
		if g.pollUntil(ctx, answers, g.serving) {
			g.pollUntil(ctx, allowed, g.rights)
		}
	})
}

// WaitServing waits until the server answers, or returns ctx's error.
func (g *Waiter) WaitServing(ctx context.Context) error { return component.Wait(ctx, g.serving) }

// WaitRBAC waits until the roles and bindings of the server exist, or returns ctx's error.
func (g *Waiter) WaitRBAC(ctx context.Context) error { return component.Wait(ctx, g.rights) }

// WrapTransport wraps a transport: requests wait until the server has answered for the first time.
func (g *Waiter) WrapTransport(next http.RoundTripper) http.RoundTripper {
	return waitTransport{g, next}
}

type waitTransport struct {
	waiter *Waiter
	next   http.RoundTripper
}

func (h waitTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := h.waiter.WaitServing(r.Context()); err != nil {
		return nil, err
	}
	return h.next.RoundTrip(r)
}

func (g *Waiter) pollUntil(ctx context.Context, good func(status int) bool, reached chan struct{}) bool {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if status := g.probe(ctx); status != 0 && good(status) {
			close(reached)
			return true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// probe returns the HTTP status of the answer, or 0 without an answer.
func (g *Waiter) probe(ctx context.Context) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/livez", nil)
	if err != nil {
		return 0
	}
	response, err := g.client.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0
	}
	return response.StatusCode
}
