package mirror

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Limits bound what a Server holds. Every process of the machine's own network can connect to a
// server on loopback, and TCP does not tell which one it is; each connection is a file of this
// process.
type Limits struct {
	// Clients is how many connections that have shown the token there are at most; what comes above
	// is closed.
	Clients int
	// MaxUnauthenticated is how many others there are at most. The oldest makes room for the next one: who
	// connects and says nothing keeps nobody out, and takes no place of a client.
	MaxUnauthenticated int
	Header             time.Duration // that a request's header may take
	Idle               time.Duration // that a connection may rest between two requests
}

// Serve answers with a handler, of Handler or Through or of both, on a listener, which it closes,
// until that fails.
func Serve(l net.Listener, handler http.Handler, limits Limits) error {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: limits.Header, IdleTimeout: limits.Idle, MaxHeaderBytes: 16 << 10,
		ErrorLog:    log.New(io.Discard, "", 0), // the client that broke off reports it itself
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
	return server.Serve(&places{Listener: l, limits: limits, clients: map[*conn]bool{}})
}

type connKey struct{}

// proved notes that the connection of a request has shown the token. It is false where there are
// too many.
func proved(ctx context.Context) bool {
	c, ok := ctx.Value(connKey{}).(*conn)
	return !ok || c.of.prove(c)
}

// places counts the connections.
type places struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	strangers []*conn // the oldest first
	clients   map[*conn]bool
}

// conn is one of them.
type conn struct {
	net.Conn
	of *places
}

// Accept implements net.Listener.
func (p *places) Accept() (net.Conn, error) {
	raw, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{raw, p}
	if oldest := p.take(c); oldest != nil {
		_ = oldest.Close() // nobody is there to be told that it failed
	}
	return c, nil
}

// take counts a new connection, and returns the one that makes room for it, if one has to.
func (p *places) take(c *conn) (oldest *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.strangers) >= p.limits.MaxUnauthenticated {
		oldest = p.strangers[0]
	}
	p.strangers = append(p.strangers, c)
	return oldest
}

func (p *places) prove(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[c] {
		return true
	}
	at := slices.Index(p.strangers, c)
	if at < 0 || len(p.clients) >= p.limits.Clients { // it made room, or there is none
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
