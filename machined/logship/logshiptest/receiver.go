// Package logshiptest implements a receiver of log lines over TLS for tests.
package logshiptest

import (
	"bufio"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Receiver receives lines over TLS. A single goroutine calls its methods, and changes its fields
// only before Start.
type Receiver struct {
	CA  *pki.CA // the issuer of the receiver's certificate
	TLS *tls.Config
	// Line is called with each complete line, by several connections at a time.
	Line func(line string)
	// Serve serves a connection and closes it. The default reads lines and calls Line.
	Serve func(raw net.Conn)

	listen func() (net.Listener, error)
	socket net.Listener // the listener of the last start
	mu     sync.Mutex
	open   map[net.Conn]bool
}

// New returns a receiver that has a certificate for spec. Each call of Start calls listen.
func New(listen func() (net.Listener, error), spec pki.Spec) (*Receiver, error) {
	ca, err := pki.NewCA("receivers", time.Hour)
	if err != nil {
		return nil, err
	}
	spec.Usage, spec.TTL = pki.Server, time.Hour
	leaf, err := ca.Issue(spec)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		return nil, err
	}
	r := &Receiver{
		CA: ca, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13},
		listen: listen, open: map[net.Conn]bool{},
	}
	r.Serve = r.readLines
	return r, nil
}

// Start accepts connections until Kill.
func (r *Receiver) Start() error {
	socket, err := r.listen()
	if err != nil {
		return err
	}
	r.socket = socket
	go func() {
		for {
			raw, err := socket.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.open[raw] = true
			r.mu.Unlock()
			go r.Serve(raw)
		}
	}()
	return nil
}

// Addr returns the address of the listener of the last start.
func (r *Receiver) Addr() net.Addr { return r.socket.Addr() }

// readLines reads a connection to its end, and closes it. It ignores an incomplete last line,
// because the sender sends this line again.
func (r *Receiver) readLines(raw net.Conn) {
	conn := tls.Server(raw, r.TLS)
	defer conn.Close()
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		r.Line(strings.TrimSpace(line))
	}
}

// Kill closes all sockets of the receiver, even with unread bytes, as the kernel does after
// SIGKILL.
func (r *Receiver) Kill() {
	_ = r.socket.Close() // a listener has no data that could be lost
	r.CloseConnections()
}

// CloseConnections closes the present connections, even with unread bytes.
func (r *Receiver) CloseConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.open {
		_ = c.Close() // the tests expect that unread data are lost
	}
	clear(r.open)
}
