// Package loopback serves HTTP on a loopback address. Only the programs of the machine have the
// token that authorizes a request. Every process in the network namespace of the machine can
// connect, for example a pod with hostNetwork, and TCP does not identify the process. Therefore the
// package limits the connections.
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
	// Clients is the maximum number of connections that have sent the token. A request with the
	// token on a further connection gets status 503.
	Clients int
	// MaxUnauthenticated is the maximum number of connections that have not sent the token. At the
	// limit, a new connection closes the oldest of these connections. So a process that opens
	// connections without the token can neither block the server nor close the connection of a
	// client.
	MaxUnauthenticated int
	Header             time.Duration // timeout for the header of a request
	Idle               time.Duration // timeout between two requests
}

// Serve serves a handler on a listener, until the listener fails. The handler calls Authorized for
// each request. Serve closes the listener and returns its error.
func Serve(l net.Listener, handler http.Handler, limits Limits) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: limits.Header, IdleTimeout: limits.Idle, MaxHeaderBytes: 16 << 10,
		ErrorLog:    log.New(io.Discard, "", 0), // a client notices a broken connection itself
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	return server.Serve(&connLimiter{Listener: l, limits: limits, clients: map[*conn]bool{}})
}

type connKey struct{}

// Authorized reports whether a request shows the token. If it does, its connection becomes a
// connection of a client. If the token is wrong (403) or Limits.Clients is reached (503),
// Authorized answers the request, closes the connection and returns false.
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

// proved counts the connection of a request as a connection of a client. It returns false if
// Limits.Clients is reached, or if a newer connection has displaced this connection.
func proved(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(*conn)
	return !ok || c.of.prove(c)
}

// connLimiter is a listener that limits its connections.
type connLimiter struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	strangers []*conn        // connections that have not sent the token, the oldest first
	clients   map[*conn]bool // connections that have sent the token
}

// conn is a connection that the connLimiter counts.
type conn struct {
	net.Conn
	of *connLimiter
}

// Accept implements net.Listener. It closes the connection that the new connection displaces.
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

// take counts a new connection. It returns the connection that the new connection displaces, or nil
// if the limit is not reached.
func (p *connLimiter) take(c *conn) (oldest *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= p.limits.MaxUnauthenticated {
		oldest = p.strangers[0]
	}
	p.strangers = append(p.strangers, c)
	return oldest
}

// prove moves a connection to the clients. It returns false if the connection was displaced, or if
// Limits.Clients is reached.
func (p *connLimiter) prove(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[c] {
		return true
	}
	at := slices.Index(p.strangers, c)
	if at < 0 || len(p.clients) >= p.limits.Clients {
		return false
	}
	p.strangers = slices.Delete(p.strangers, at, at+1)
	p.clients[c] = true
	return true
}

// Close implements net.Conn. The connection no longer counts.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.clients, c)
	if at := slices.Index(c.of.strangers, c); at >= 0 {
		c.of.strangers = slices.Delete(c.of.strangers, at, at+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}
