package vm

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/inetaf/tcpproxy"
)

// Forward is a TCP port on 127.0.0.1 for connections to a port in the closed network.
type Forward struct {
	// Addr is the address on the host, "127.0.0.1:port".
	Addr string
	// To is the address in the closed network, "10.77.0.11:50000" or "cp1:50000".
	To string

	network  *Network
	listener net.Listener
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
}

// Forward listens on a port of 127.0.0.1 (0: a free port) and forwards each connection to an
// address in the closed network. Forwards are the only connections between the host's network and
// the closed network, and only the host can open a connection.
func (n *Network) Forward(port uint16, to string) (*Forward, error) {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("network: cannot forward to %s: %w", to, err)
	}
	f := &Forward{Addr: listener.Addr().String(), To: to, network: n, listener: listener}
	f.ctx, f.stop = context.WithCancel(context.Background())
	proxy := &tcpproxy.DialProxy{
		Addr:        to,
		DialContext: f.dial,
		DialTimeout: 20 * time.Second,
		// The connection of the client ends, as if the machine had stopped.
		OnDialError: func(src net.Conn, _ error) { src.Close() },
	}
	f.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.running.Go(func() {
				unhook := context.AfterFunc(f.ctx, func() { conn.Close() })
				defer unhook()
				proxy.HandleConn(conn)
			})
		}
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forwards = append(n.forwards, f)
	return f, nil
}

// dial connects to an address in the closed network. The connection ends with the forward.
func (f *Forward) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	conn, err := f.network.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(f.ctx, func() { conn.Close() })
	return conn, nil
}

// Forwards lists the open forwards.
func (n *Network) Forwards() []*Forward {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.forwards)
}

// Close ends the forward and its connections.
func (f *Forward) Close() {
	f.stop()
	f.listener.Close()
	f.running.Wait()
	n := f.network
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forwards = slices.DeleteFunc(n.forwards, func(g *Forward) bool { return g == f })
}
