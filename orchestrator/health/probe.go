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

// Prober asks servers of one kind whether they are ready, as anybody may: without credentials. It
// is for several goroutines; do not change its fields after the first question.
type Prober struct {
	CAFile  string        // who signs the servers' certificates; read again when it changes
	Name    string        // what the certificates must be for, whatever the servers' addresses
	Path    string        // what is asked for, with its query
	Timeout time.Duration // how long an answer may take
	Idle    time.Duration // how long a connection waits for the next question
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)

	mu       sync.Mutex
	believed []byte // what CAFile held
	client   *http.Client
}

// ProbeResult is what became of a question.
type ProbeResult struct {
	Reachable bool   // the server has answered, and is one of those that CAFile signs for
	Late      bool   // nothing came in time, which may be the network's fault, or this machine's
	Problem   string // why it is not ready; empty when it is
}

// Probe asks one server, host:port.
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

// Client returns the client that believes what CAFile holds now, or held last when it cannot be
// used now.
func (p *Prober) Client() (*http.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(p.CAFile)
	switch {
	case p.client != nil && (err != nil || bytes.Equal(pem, p.believed)):
		return p.client, nil
	case err != nil:
		return nil, fmt.Errorf("cannot check its certificate: %w", err)
	case roots.AppendCertsFromPEM(pem):
		p.Close()
		p.believed, p.client = pem, &http.Client{Transport: &http.Transport{
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

// Close closes the connections that wait for the next question.
func (p *Prober) Close() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// late says that a deadline has passed.
func late(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Reason says in a few words why there was no answer. It is the same as long as the cause is: no
// ports and times are in it.
func Reason(err error) string {
	var name *net.DNSError
	var operation *net.OpError
	var stranger x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return "its name cannot be looked up"
	case late(err):
		return "does not answer"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has ended or not begun by this machine's clock"
	case errors.As(err, &stranger):
		return "its certificate is by no authority of this cluster"
	case errors.As(err, &certificate):
		return certificate.Err.Error()
	case errors.As(err, &operation):
		return operation.Err.Error()
	}
	return err.Error()
}
