package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/paths"
)

// Listen creates the Unix socket to which only root and apid's group can connect.
func Listen(path string) (net.Listener, error) {
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
	if err := errors.Join(os.Chown(path, 0, paths.UserApid), os.Chmod(path, 0o660)); err != nil {
		l.Close()
		return nil, fmt.Errorf("api: cannot give the socket to apid: %w", err)
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

// NewServer returns the server of the local API. It serves the services on a socket of Listen.
func (a *API) NewServer(g Interceptor) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.UnaryInterceptor(g.Unary), grpc.StreamInterceptor(g.Stream))
	a.Register(s)
	return s
}
