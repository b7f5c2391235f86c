// Package health polls the health endpoints of components and API servers. Check announces the
// first success of a component and each later change. Prober probes many servers of the same kind.
// The servers decide whether they are healthy; the package only reports their answers.
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
	// starting is the interval until the first success. It limits the delay with which a boot
	// notices that a component is ready.
	starting = 300 * time.Millisecond
	// steady is the interval after the first success. It can be long, because the end of a process
	// is detected at once by other means.
	steady = 10 * time.Second
	// timeout bounds a request.
	timeout = 5 * time.Second
)

// Check is the health endpoint of a component.
type Check struct {
	Component string
	URL       string
	CAFile    string // for https: the CAs that sign the component's certificate
	Name      string // for https: the name in the certificate, if it differs from the URL's host
}

// Watch polls the endpoint until ctx is done and announces every change.
func (c Check) Watch(ctx context.Context, announce component.Announce) error {
	client, authority, err := c.client(nil, nil)
	if err != nil {
		return fmt.Errorf("%s: cannot check health: %w", c.Component, err)
	}
	ticker := time.NewTicker(starting)
	defer ticker.Stop()
	last, everReady := "starting", false
	for {
		// A different CA may sign the component's certificate now.
		if client, authority, err = c.client(client, authority); err != nil {
			return fmt.Errorf("%s: cannot check health: %w", c.Component, err)
		}
		problem := c.probe(ctx, client)
		if problem == "" && !everReady {
			everReady = true
			ticker.Reset(steady)
		}
		// Before the first success, a failure is a normal step of the start and is not announced.
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

// client returns an HTTP client and the content of CAFile that this client trusts. While that
// content is the same as trusted, it returns last.
func (c Check) client(last *http.Client, trusted []byte) (*http.Client, []byte, error) {
	transport := &http.Transport{MaxIdleConns: 1, IdleConnTimeout: 2 * steady}
	var pem []byte
	if c.CAFile != "" {
		var err error
		if pem, err = os.ReadFile(c.CAFile); err != nil {
			return nil, nil, err
		}
	}
	if last != nil {
		if bytes.Equal(pem, trusted) {
			return last, trusted, nil
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
	return &http.Client{Timeout: timeout, Transport: transport}, pem, nil
}

// probe returns why the component is not healthy, or "".
func (c Check) probe(ctx context.Context, client *http.Client) string {
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

// Problem reads the response of a Kubernetes health endpoint and returns the reported problem, or
// "". The caller closes the body.
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

// firstFailure returns the first failed check of a Kubernetes health response ("[-]name failed:
// reason").
func firstFailure(body string) string {
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "[-]") {
			return strings.TrimSpace(strings.TrimPrefix(line, "[-]"))
		}
	}
	return strings.TrimSpace(body)
}
