// Package loopback serves HTTP on a loopback address to the programs of the machine that show a
// token. It limits the connections: every process in the machine's network namespace, such as a pod
// with hostNetwork, can connect, and TCP does not identify the process.
package loopback

import (
	"context"
	"crypto/subtle"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Limits bounds the connections of a server. Each connection uses a file descriptor of this
// process.
type Limits struct {
	// Clients is the maximum number of connections that have shown the token; further connections
	// are closed.
	Clients int
	// MaxUnauthenticated is the maximum number of other connections. A new connection displaces the
	// oldest, so a silent process cannot block the server, and takes no connection from a client.
	MaxUnauthenticated int
	Header             time.Duration // timeout for the header of a request
	Idle               time.Duration // timeout between two requests
}

// Serve serves a handler that calls Authorized for each request, on a listener until the listener
// fails. It closes the listener.
func Serve(l net.Listener, handler http.Handler, limits Limits) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: limits.Header, IdleTimeout: limits.Idle, MaxHeaderBytes: 16 << 10,
		ErrorLog:    log.New(io.Discard, "", 0), // the client reports a broken connection itself
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	return server.Serve(&connLimiter{Listener: l, limits: limits, clients: map[*conn]bool{}})
}

type connKey struct{}

// Authorized checks the token of a request, and counts its connection as a connection of a client.
// It answers the request and closes the connection if the token is wrong (403) or too many
// connections are open (503).
func Authorized(w http.ResponseWriter, r *http.Request, shown string, token []byte) bool {
	status, why := http.StatusOK, ""
	switch {
	case subtle.ConstantTimeCompare([]byte(shown), token) != 1:
		status, why = http.StatusForbidden, "this server is for programs of the machine alone"
	case !proved(r.Context()):
		status, why = http.StatusServiceUnavailable, "too many connections are open"
	default:
		return true
	}
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
	return false
}

// proved records that the connection of a request has shown the token. It returns false if too many
// connections are open.
func proved(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(*conn)
	return !ok || c.of.prove(c)
}

// connLimiter counts the connections.
type connLimiter struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	strangers []*conn // the oldest first
	clients   map[*conn]bool
}

// conn is a counted connection.
type conn struct {
	net.Conn
	of *connLimiter
}

// Accept implements net.Listener.
func (p *connLimiter) Accept() (net.Conn, error) {
	raw, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{raw, p}
	if oldest := p.take(c); oldest != nil {
		_ = oldest.Close() // no caller can handle the error
	}
	return c, nil
}

// take counts a new connection, and returns the connection that it displaces, if any.
func (p *connLimiter) take(c *conn) (oldest *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= p.limits.MaxUnauthenticated {
		oldest = p.strangers[0]
	}
	p.strangers = append(p.strangers, c)
	return oldest
}

func (p *connLimiter) prove(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[c] {
		return true
	}
	at := slices.Index(p.strangers, c)
	if at < 0 || len(p.clients) >= p.limits.Clients { // it was displaced, or the limit is reached
		return false
	}
	p.strangers = slices.Delete(p.strangers, at, at+1)
	p.clients[c] = true
	return true
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.clients, c)
	if at := slices.Index(c.of.strangers, c); at >= 0 {
		c.of.strangers = slices.Delete(c.of.strangers, at, at+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
