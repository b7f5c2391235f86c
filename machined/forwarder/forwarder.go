// Package forwarder lets the other programs of the machine reach servers outside the cluster as the
// configuration says (package egress): containerd through a proxy on loopback, the API server
// through a Unix socket. These programs know neither the proxy of the site nor its password, and a
// change of the proxy restarts none of them.
//
// The listener and the socket are opened when the first configuration with a proxy is planned, and
// stay open.
package forwarder

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/loopback"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Deps is the environment of a Server.
type Deps struct {
	Config func() egress.Config // returns the present configuration
	// Listen opens the socket of the API server.
	Listen func() (net.Listener, error)
	// Event adds an event to the machine's events.
	Event func(kind, message string)
}

// Server serves the forwarder.
type Server struct {
	deps Deps

	mu    sync.Mutex
	proxy string // the URL for containerd; empty before the first successful Open
}

// New returns a server; Open starts it.
func New(d Deps) *Server { return &Server{deps: d} }

// limits are the limits of the loopback listener. containerd fetches three layers of an image at
// once. Every pod with hostNetwork can connect, and gets no further without the token.
var limits = loopback.Limits{Clients: 128, MaxUnauthenticated: 32, Header: 10 * time.Second, Idle: time.Minute}

// maxSocketClients is the maximum number of connections of the API server; further ones wait.
const maxSocketClients = 128

// user is the user name in the URL for containerd; the token is the password.
const user = "containerd"

// Open opens the listeners at its first call, and returns the URL of the proxy for containerd. The
// URL contains a token, because pods in the machine's network namespace can connect, too.
func (s *Server) Open() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proxy != "" {
		return s.proxy, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("egress: cannot open the forwarder: %w", err)
	}
	socket, err := s.deps.Listen()
	if err != nil {
		_ = listener.Close() // no connection exists
		return "", fmt.Errorf("egress: cannot open the forwarder: %w", err)
	}
	token, forwarder := rand.Text(), egress.NewForwarder(s.deps.Config)
	expected := []byte(egress.Basic(user, token))
	withToken := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback.Authorized(w, r, r.Header.Get("Proxy-Authorization"), expected) {
			forwarder.ServeHTTP(w, r)
		}
	})
	s.serve("containerd", func() error { return loopback.Serve(listener, withToken, limits) })
	s.serve("the API server", func() error {
		server := http.Server{Handler: forwarder, ReadHeaderTimeout: limits.Header, IdleTimeout: limits.Idle, ErrorLog: log.New(io.Discard, "", 0)}
		return server.Serve(netutil.LimitListener(socket, maxSocketClients))
	})
	at := url.URL{Scheme: "http", User: url.UserPassword(user, token), Host: listener.Addr().String()}
	s.proxy = at.String()
	return s.proxy, nil
}

// serve serves a listener until it fails.
func (s *Server) serve(client string, run func() error) {
	panics.Go("forwarder", func() {
		s.deps.Event("failure", fmt.Sprintf("the forwarder for %s has ended: %v; reboot the machine", client, run()))
	})
}
