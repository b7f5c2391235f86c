package balancer

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

	"github.com/orlop-os/orlop/orchestrator/health"
)

// patience is how long an API server may take to answer a question.
const patience = 2 * time.Second

// serverName is in the certificate of every API server of the cluster (machined/credentials), whatever its address.
const serverName = "localhost"

// prober asks API servers whether they are ready, as anybody may: without credentials.
type prober struct {
	caFile string // who signs the servers' certificates; read again when it changes
	dial   func(ctx context.Context, network, address string) (net.Conn, error)

	mu       sync.Mutex
	believed []byte // what caFile held
	client   *http.Client
}

// ask asks one server, host:port.
func (p *prober) ask(ctx context.Context, address string) Answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := p.refresh()
	if err != nil {
		return Answer{Problem: err.Error()}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return Answer{Problem: err.Error()}
	}
	response, err := client.Do(request)
	if err != nil {
		return Answer{Problem: reason(err)}
	}
	defer response.Body.Close()
	problem, err := health.Problem(response)
	if err != nil {
		return Answer{Problem: reason(err)}
	}
	return Answer{Heard: true, Problem: problem}
}

// refresh returns the client that believes what caFile holds now, or held last when it cannot be used now.
func (p *prober) refresh() (*http.Client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(p.caFile)
	switch {
	case p.client != nil && (err != nil || bytes.Equal(pem, p.believed)):
		return p.client, nil
	case err != nil:
		return nil, fmt.Errorf("cannot check its certificate: %w", err)
	case roots.AppendCertsFromPEM(pem):
		p.close()
		p.believed, p.client = pem, &http.Client{Transport: &http.Transport{
			DialContext:         p.dial,
			TLSClientConfig:     &tls.Config{RootCAs: roots, ServerName: serverName},
			MaxIdleConnsPerHost: 1,
			IdleConnTimeout:     2 * standby,
		}}
	case p.client == nil:
		return nil, fmt.Errorf("%s: cannot use: no certificate in it", p.caFile)
	}
	return p.client, nil
}

// close closes the connections that wait for the next question.
func (p *prober) close() {
	if p.client != nil {
		p.client.CloseIdleConnections()
	}
}

// reason says in a few words why there was no answer. It is the same as long as the cause is: no ports and times are in it.
func reason(err error) string {
	var timeout net.Error
	var name *net.DNSError
	var operation *net.OpError
	var stranger x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &name):
		return "its name cannot be looked up"
	case errors.As(err, &timeout) && timeout.Timeout():
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
