package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// Prober probes the readiness of servers of the same kind without credentials. It is safe for
// concurrent use; its fields must not change after the first probe.
type Prober struct {
	CAFile  string        // the CAs of the servers' certificates; reloaded when the file changes
	Name    string        // the name in the servers' certificates, independent of the address
	Path    string        // request path, with query
	Timeout time.Duration // bounds a probe
	Idle    time.Duration // how long an idle connection stays open
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	trusted []byte // the content of CAFile that client trusts
	client  *http.Client
}

// ProbeResult is the result of a probe.
type ProbeResult struct {
	Reachable bool   // the server answered with a certificate of a CA in CAFile
	Late      bool   // the probe timed out; the network or this machine can be the cause
	Problem   string // why the server is not ready, or empty
}

// Probe probes the server at address, which has the form host:port.
func (p *Prober) Probe(ctx context.Context, address string) ProbeResult {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	client, err := p.Client()
	if err != nil {
		return ProbeResult{Problem: err.Error()}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+p.Path, nil)
	if err != nil {
		return ProbeResult{Problem: err.Error()}
	}
	response, err := client.Do(request)
	if err != nil {
		return ProbeResult{Late: late(err), Problem: Reason(err)}
	}
	defer response.Body.Close()
	problem, err := Problem(response)
	if err != nil {
		return ProbeResult{Late: late(err), Problem: Reason(err)}
	}
	return ProbeResult{Reachable: true, Problem: problem}
}

// Client returns a client that trusts the current content of CAFile. If the file is unusable, the
// previous client stays in use.
func (p *Prober) Client() (*http.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(p.CAFile)
	switch {
	case p.client != nil && (err != nil || bytes.Equal(pem, p.trusted)):
		return p.client, nil
	case err != nil:
		return nil, fmt.Errorf("cannot check its certificate: %w", err)
	case roots.AppendCertsFromPEM(pem):
		p.Close()
		p.trusted, p.client = pem, &http.Client{Transport: &http.Transport{
			DialContext:         p.Dial,
			TLSClientConfig:     &tls.Config{RootCAs: roots, ServerName: p.Name},
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     p.Idle,
		}}
	case p.client == nil:
		return nil, fmt.Errorf("%s: cannot use: no certificate in it", p.CAFile)
	}
	return p.client, nil
}

// Close closes idle connections.
func (p *Prober) Close() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// late reports whether err is a timeout.
func late(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Reason returns a short cause of a failed request. The text contains no ports and times, so the
// same cause always yields the same text.
func Reason(err error) string {
	var name *net.DNSError
	var operation *net.OpError
	var stranger x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return "cannot resolve its name"
	case late(err):
		return "does not answer"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired or is not yet valid by this machine's clock"
	case errors.As(err, &stranger):
		return "its certificate is not signed by a CA of this cluster"
	case errors.As(err, &certificate):
		return certificate.Err.Error()
	case errors.As(err, &operation):
		return operation.Err.Error()
	}
	return err.Error()
}
