package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
)

// Listen creates a Unix socket to which only root and a group can connect; group 0: only root.
func Listen(path string, group int) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("api: cannot create directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("api: cannot replace the socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("api: cannot listen: %w", err)
	}
	mode := os.FileMode(0o660)
	if group == 0 {
		mode = 0o600
	}
	if err := errors.Join(os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
		l.Close()
		return nil, fmt.Errorf("api: cannot give the socket to its group: %w", err)
	}
	return l, nil
}

// The limits of the local API. apid has its own limits for clients; these limits protect PID 1 from
// a faulty apid.
const (
	maxMessage = 4 << 20 // bytes
	maxStreams = 256
	// streamWindow is the number of bytes that apid can send on a stream before machined reads
	// them, in addition to one message. gRPC would let the window grow to 16 MiB.
	streamWindow = 256 << 10
	// bytes in flight from apid, of all streams; machined reads them from the socket at once
	connWindow = 1 << 20
)

// NewServer returns the server of the local API, which serves all services on a socket from Listen.
func (a *API) NewServer(g Interceptor) *grpc.Server {
	s := newServer(g)
	a.Register(s)
	return s
}

// newServer returns a server without services.
func newServer(g Interceptor) *grpc.Server {
	return grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.UnaryInterceptor(g.Unary), grpc.StreamInterceptor(g.Stream))
}
