// Package apiready tells when the API server can be used, so that components are started at once and
// wait for it instead of failing and backing off for seconds.
//
// Two moments matter: the server answers at all (a kubelet can register), and the rights exist
// (controllers may act). Health is the one thing the server tells without credentials, so the gate
// needs none; and it is told only once the rights exist, because the right to ask for it is made
// last of all (kubeapiserver/rights.go). The gate does not wait for the server to call itself
// ready, which comes a second later. It asks at short intervals, because a process cannot wait for
// another's socket to be opened; asking a closed port costs microseconds.
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
)

// interval is between two questions. It is the most that a waiting component loses; 7 questions a
// second to a port that is closed are less than a thousandth of a processor.
const interval = 150 * time.Millisecond

// Waiter watches one API server until it can be used. Make it with New and start Run.
type Waiter struct {
	url     string
	client  *http.Client
	serving chan struct{}
	rights  chan struct{}
	once    sync.Once
}

// New returns a gate for the server at url (https://host:port), whose certificate is checked
// against the CA in caFile and must be for serverName (for the URL's host when empty).
func New(url, serverName, caFile string) (*Waiter, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("API server: cannot check its certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: cannot use: no certificate in it", caFile)
	}
	return &Waiter{
		url: strings.TrimSuffix(url, "/"),
		client: &http.Client{
			Timeout:   2 * time.Second, // of one question; an overloaded server is asked again
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: serverName}, ForceAttemptHTTP2: false},
		},
		serving: make(chan struct{}),
		rights:  make(chan struct{}),
	}, nil
}

// Run asks until the rights exist or ctx is done. Calls after the first do nothing.
func (g *Waiter) Run(ctx context.Context) {
	g.once.Do(func() {
		defer g.client.CloseIdleConnections()
		answers := func(int) bool { return true }
		// Healthy or not: the question was allowed.
		allowed := func(status int) bool {
			return status == http.StatusOK || status == http.StatusInternalServerError
		}
		if g.until(ctx, answers, g.serving) {
			g.until(ctx, allowed, g.rights)
		}
	})
}

// WaitServing waits until the server answers, or returns ctx's error.
func (g *Waiter) WaitServing(ctx context.Context) error { return wait(ctx, g.serving) }

// WaitRBAC waits until the server's roles and bindings exist, or returns ctx's error.
func (g *Waiter) WaitRBAC(ctx context.Context) error { return wait(ctx, g.rights) }

// WrapTransport wraps a transport: requests wait until the server answers. Once it did, they pass.
func (g *Waiter) WrapTransport(next http.RoundTripper) http.RoundTripper { return held{g, next} }

type held struct {
	gate *Waiter
	next http.RoundTripper
}

func (h held) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := h.gate.WaitServing(r.Context()); err != nil {
		return nil, err
	}
	return h.next.RoundTrip(r)
}

func (g *Waiter) until(ctx context.Context, good func(status int) bool, reached chan struct{}) bool {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if status := g.ask(ctx); status != 0 && good(status) {
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

// ask returns the HTTP status of the answer, or 0 when there is none.
func (g *Waiter) ask(ctx context.Context) int {
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

func wait(ctx context.Context, reached <-chan struct{}) error {
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
