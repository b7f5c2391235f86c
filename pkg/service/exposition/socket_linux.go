package exposition

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/net/netutil"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Env is the environment variable with the number of the file descriptor of the socket that a
// process inherits.
const Env = "ORLOP_METRICS_FD"

// Limits of a socket. The only client is metricsd, which has limits for its own callers.
const (
	maxClients    = 16
	headerTimeout = 5 * time.Second
	// The API server may be slow to review a token, and etcd has thousands of lines.
	writeTimeout = 30 * time.Second
	idleTimeout  = time.Minute
)

// Listen creates the socket of a process, to which root and metricsd can connect. The caller closes
// it.
func Listen(path string) (*os.File, error) {
	socket, err := safefile.Listen(path, paths.UserMetrics, 0o755)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return socket, nil
}

// Inherited returns the listener of the socket that this process has inherited; nil without a
// socket.
func Inherited() (net.Listener, error) {
	socket, err := safefile.Inherited(Env)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if socket == nil {
		return nil, nil
	}
	return Listener(socket)
}

// Listener returns the listener of a socket, and closes the file.
func Listener(socket *os.File) (net.Listener, error) {
	defer socket.Close()
	l, err := net.FileListener(socket) // duplicates the descriptor
	if err != nil {
		return nil, fmt.Errorf("metrics: cannot use the socket: %w", err)
	}
	return l, nil
}

// Serve serves a handler on the listener of a socket until the listener fails. It closes the
// listener.
func Serve(l net.Listener, handler http.Handler) error {
	server := http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 32 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // metricsd reports the end of a connection itself
	}
	return server.Serve(netutil.LimitListener(l, maxClients))
}

// Client returns an HTTP client of a socket. The host in its URLs has no meaning.
func Client(socket string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &http.Client{
		Transport:     &http.Transport{DialContext: dial, MaxIdleConns: 1, IdleConnTimeout: idleTimeout / 2, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
