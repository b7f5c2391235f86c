package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

const (
	// forwardTimeout bounds the establishment of a connection to a server, directly or through the
	// proxy of the site.
	forwardTimeout = 30 * time.Second
	// forwardIdle is the time after which an idle connection to a server without TLS is closed.
	forwardIdle = 30 * time.Second
)

// Forwarder is a proxy for programs of the machine that cannot use a Config: containerd reads its
// proxy only at its start, from its environment, and the API server supports only proxies without a
// password. Forwarder connects to each server according to the present Config. So these programs
// need not restart after a change, and do not know the password.
type Forwarder struct {
	config func() Config

	mu        sync.Mutex
	used      Config          // the configuration of transport
	transport *http.Transport // for servers without TLS; nil before the first request
}

// NewForwarder returns a forwarder. config returns the present configuration.
func NewForwarder(config func() Config) *Forwarder { return &Forwarder{config: config} }

// ServeHTTP implements http.Handler: CONNECT for servers with TLS, and requests with an absolute
// URL for others.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		f.connect(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		f.forward(w, r)
	default:
		http.Error(w, "this is a proxy", http.StatusBadRequest)
	}
}

// connect serves CONNECT: it connects a client to a server. After a failure, it sends the reason in
// the status line, because clients show nothing else of the answer.
func (f *Forwarder) connect(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), forwardTimeout)
	server, _, err := f.config().Dial(ctx, &net.Dialer{}, r.Host)
	cancel()
	client, buffered, hijackErr := http.NewResponseController(w).Hijack()
	if hijackErr != nil {
		if server != nil {
			_ = server.Close()
		}
		http.Error(w, hijackErr.Error(), http.StatusInternalServerError)
		return
	}
	defer client.Close()
	if err != nil {
		_, _ = fmt.Fprintf(client, "HTTP/1.1 502 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", sanitize.ASCII(err.Error(), 300))
		return
	}
	defer server.Close()
	// Remove the deadlines that net/http has set for the request.
	if err := client.SetDeadline(time.Time{}); err != nil {
		return
	}
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connected\r\n\r\n"); err != nil {
		return
	}
	sent := make(chan struct{})
	panics.Go("forwarder", func() {
		defer close(sent)
		pipe(server, buffered)
	})
	pipe(client, server)
	<-sent
}

// pipe copies until the source ends, and then closes the destination for writing only. After an
// error it closes the destination completely, which also ends the other direction.
func pipe(to net.Conn, from io.Reader) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
	}
}

// forward sends a request to a server without TLS.
func (f *Forwarder) forward(w http.ResponseWriter, r *http.Request) {
	transport, err := f.currentTransport()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = p.In.URL, p.In.Host
			p.Out.Header.Del("Proxy-Authorization")
		},
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0), // the client gets the error
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if inner := (*url.Error)(nil); errors.As(err, &inner) {
				err = inner.Err
			}
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}).ServeHTTP(w, r)
}

// currentTransport returns a transport for the present configuration.
func (f *Forwarder) currentTransport() (*http.Transport, error) {
	now := f.config()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.transport != nil && f.used == now {
		return f.transport, nil
	}
	next := &http.Transport{
		DialContext: (&net.Dialer{Timeout: forwardTimeout}).DialContext, TLSHandshakeTimeout: forwardTimeout, IdleConnTimeout: forwardIdle,
		// The client decides whether to request compression.
		DisableCompression: true,
	}
	if err := now.Complete(next, nil); err != nil {
		return nil, err
	}
	if f.transport != nil {
		f.transport.CloseIdleConnections()
	}
	f.used, f.transport = now, next
	return next, nil
}
