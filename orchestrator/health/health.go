// Package health asks components and API servers that answer on a health address whether they work:
// Check announces one, first as soon as it does, then whenever that changes; Prober asks many of
// one kind. It judges nothing itself; their own checks decide.
package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/orlop-os/orlop/orchestrator/component"
)

const (
	// starting is between two questions until the first good answer: what a watcher of the
	// machine's start loses at most.
	starting = 300 * time.Millisecond
	// steady is between two questions afterwards; a component that ends is noticed at once by other
	// means.
	steady = 10 * time.Second
	// patience is how long one answer may take.
	patience = 5 * time.Second
)

// Check is one health address.
type Check struct {
	Component string
	URL       string
	CAFile    string // for https: who signed the component's certificate
	Name      string // for https: what the certificate must be for, when not the URL's host
}

// Watch asks until ctx is done and announces every change.
func (c Check) Watch(ctx context.Context, announce component.Announce) error {
	client, authority, err := c.client(nil, nil)
	if err != nil {
		return fmt.Errorf("%s: cannot check health: %w", c.Component, err)
	}
	ticker := time.NewTicker(starting)
	defer ticker.Stop()
	last, everReady := "starting", false
	for {
		// The component's certificate may be another authority's by now.
		if client, authority, err = c.client(client, authority); err != nil {
			return fmt.Errorf("%s: cannot check health: %w", c.Component, err)
		}
		problem := c.ask(ctx, client)
		if problem == "" && !everReady {
			everReady = true
			ticker.Reset(steady)
		}
		// Before the first good answer every detail is a step of the start; it is worth telling
		// only when it is one.
		if problem != last && ctx.Err() == nil && (problem == "" || everReady) {
			announce(c.Component, problem == "", problem)
			last = problem
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// client is what asks, and the content of CAFile that it believes: last, as long as that has not
// changed.
func (c Check) client(last *http.Client, believed []byte) (*http.Client, []byte, error) {
	transport := &http.Transport{MaxIdleConns: 1, IdleConnTimeout: 2 * steady}
	var pem []byte
	if c.CAFile != "" {
		var err error
		if pem, err = os.ReadFile(c.CAFile); err != nil {
			return nil, nil, err
		}
	}
	if last != nil {
		if bytes.Equal(pem, believed) {
			return last, believed, nil
		}
		last.CloseIdleConnections()
	}
	if c.CAFile != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("%s: no certificate in it", c.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: c.Name}
	}
	return &http.Client{Timeout: patience, Transport: transport}, pem, nil
}

// ask returns why the component is not healthy, or "".
func (c Check) ask(ctx context.Context, client *http.Client) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	problem, err := Problem(response)
	if err != nil {
		return err.Error()
	}
	return problem
}

// Problem reads the answer of a Kubernetes health address and returns what it says is wrong, or "".
// The body is the caller's to close.
func Problem(response *http.Response) (string, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return "", err
	}
	if response.StatusCode == http.StatusOK {
		return "", nil
	}
	return fmt.Sprintf("%s: %s", response.Status, firstFailure(string(body))), nil
}

// firstFailure picks the first failed check out of a Kubernetes health answer ("[-]name failed:
// reason").
func firstFailure(body string) string {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			return strings.TrimSpace(strings.TrimPrefix(line, "[-]"))
		}
	}
	return strings.TrimSpace(body)
}
