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

// Env is the environment variable with the descriptor number of the inherited socket.
const Env = "ORLOP_METRICS_FD"

// Limits of a socket. Its only client is metricsd, which limits its own clients.
const (
	maxClients    = 16
	headerTimeout = 5 * time.Second
	// An answer can take long: the API server may be slow to check a token, and etcd has thousands
	// of lines.
	writeTimeout = 30 * time.Second
	idleTimeout  = time.Minute
)

// Listen creates the socket for a process. Root and metricsd can connect to the socket. The caller
// closes the file.
func Listen(path string) (*os.File, error) {
	socket, err := safefile.Listen(path, paths.UserMetrics, 0o755)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return socket, nil
}

// Inherited returns a listener for the socket that this process has inherited; nil if the process
// has inherited none.
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

// Listener returns a listener for a socket, and closes the file.
func Listener(socket *os.File) (net.Listener, error) {
	defer socket.Close()
	l, err := net.FileListener(socket) // duplicates the descriptor
	if err != nil {
		return nil, fmt.Errorf("metrics: cannot use the socket: %w", err)
	}
	return l, nil
}

// Serve serves a handler on a listener until the listener fails. It closes the listener and returns
// its error.
func Serve(l net.Listener, handler http.Handler) error {
	server := http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 32 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // metricsd reports a broken connection itself
	}
	return server.Serve(netutil.LimitListener(l, maxClients))
}

// Client returns an HTTP client for a socket. It ignores the host in a URL.
func Client(socket string) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &http.Client{
		Transport:     &http.Transport{DialContext: dial, MaxIdleConns: 1, IdleConnTimeout: idleTimeout / 2, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
