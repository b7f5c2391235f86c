// Package egresstest implements the HTTP proxy of a site for tests.
package egresstest

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Proxy is an HTTP proxy for a single user. It supports CONNECT, and requests with an absolute URL.
type Proxy struct {
	Username, Password string // empty if no password is required
	// Dial connects to a server. If it is nil, the proxy uses a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	targets []string
}

// Targets returns the servers (host:port) that clients with the right password have requested, in
// order.
func (p *Proxy) Targets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.targets)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	if user, password, _ := asked.BasicAuth(); user != p.Username || password != p.Password {
		w.Header().Set("Proxy-Authenticate", `Basic realm="site"`)
		http.Error(w, "who are you?", http.StatusProxyAuthRequired)
		return
	}
	p.mu.Lock()
	p.targets = append(p.targets, r.Host)
	p.mu.Unlock()
	dial := p.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	if r.Method != http.MethodConnect {
		p.forward(w, r, dial)
		return
	}
	server, err := dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer server.Close()
	client, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	// Like many proxies, this proxy closes both directions as soon as either direction ends.
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{server, client}, {client, server}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // the test sees the end
			ended <- struct{}{}
		}()
	}
	<-ended
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	out := r.Clone(r.Context())
	out.RequestURI = ""
	out.Header.Del("Proxy-Authorization")
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	answer, err := transport.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body) // the test sees the end
}
