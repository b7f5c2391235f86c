package resolver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// answerTimeout is the timeout of a query to one resolver, including the connection. A client
	// repeats its query after 5 s, or after 2 s with several servers (resolv.conf(5)).
	answerTimeout = 4 * time.Second
	dialTimeout   = 2 * time.Second
	// idleTimeout is the time for which an idle connection is retained for further queries (RFC
	// 7858, 3.4).
	idleTimeout = 10 * time.Second
	// maxIdle is the largest number of idle connections to a resolver that are retained.
	maxIdle = 4
	// cooldown is the time after a failure in which the other resolvers are queried before this
	// one.
	cooldown = 10 * time.Second
)

// upstream is a resolver over TLS.
type upstream struct {
	address netip.AddrPort
	config  *tls.Config

	mu    sync.Mutex
	idle  []idleConn
	until time.Time // the end of the cooldown; zero if there is none
}

type idleConn struct {
	net.Conn
	since time.Time
}

// newUpstream returns a resolver at an address. Its certificate has to be for name, or for its
// address if name is empty.
func newUpstream(address netip.AddrPort, name string, roots *x509.CertPool, clock func() pki.ClockView) *upstream {
	if name == "" {
		name = address.Addr().String()
	}
	config := pki.ClientConfig(name, roots, clock)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	return &upstream{address: address, config: config}
}

// ask sends a query and returns the response. It uses an idle connection first. If that fails, it
// repeats the query on a new connection, because a server may close an idle connection at any time.
func (u *upstream) ask(ctx context.Context, q query) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if conn := u.take(); conn != nil {
		if answer, err := u.exchange(ctx, conn, q); err == nil {
			return answer, nil
		}
	}
	conn, err := u.dial(ctx)
	if err != nil {
		u.rest()
		return nil, fmt.Errorf("resolver %s: %w", u.address, err)
	}
	answer, err := u.exchange(ctx, conn, q)
	if err != nil {
		u.rest()
		return nil, fmt.Errorf("resolver %s: %w", u.address, err)
	}
	return answer, nil
}

func (u *upstream) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.address.String())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, u.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return conn, nil
}

// exchange sends a query on a connection and reads the response. Afterwards it retains the
// connection as idle, or closes it after a failure.
func (u *upstream) exchange(ctx context.Context, conn net.Conn, q query) (answer []byte, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if !stop() || err != nil {
			conn.Close()
			return
		}
		u.keep(conn)
	}()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if err := writeMessage(conn, q.message); err != nil {
		return nil, err
	}
	if answer, err = readMessage(conn); err != nil {
		return nil, err
	}
	if !q.answers(answer) {
		return nil, errors.New("it answers another query")
	}
	return answer, nil
}

func (u *upstream) take() net.Conn {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.idle) > 0 {
		last := u.idle[len(u.idle)-1]
		u.idle = u.idle[:len(u.idle)-1]
		if time.Since(last.since) < idleTimeout {
			return last.Conn
		}
		last.Close()
	}
	return nil
}

func (u *upstream) keep(conn net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.until = time.Time{}
	if len(u.idle) >= maxIdle {
		u.idle[0].Close()
		u.idle = u.idle[1:]
	}
	u.idle = append(u.idle, idleConn{conn, time.Now()})
}

// close closes the idle connections.
func (u *upstream) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.idle {
		c.Close()
	}
	u.idle = nil
}

func (u *upstream) rest() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.until = time.Now().Add(cooldown)
}

func (u *upstream) rests() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.until)
}

// writeMessage writes the length of a message and then the message (RFC 1035, 4.2.2), in a single
// write.
func writeMessage(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}

// readMessage reads a length and then a message of that length, at most 65535 bytes.
func readMessage(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}
