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
	// answerTimeout bounds a query to one resolver, with the connection. A client waits 5 s, or 2 s
	// with several servers (resolv.conf(5)), and asks again.
	answerTimeout = 4 * time.Second
	dialTimeout   = 2 * time.Second
	// idleTimeout is the time for which a connection is kept for further queries (RFC 7858, 3.4).
	idleTimeout = 10 * time.Second
	// maxIdle is the number of connections of a resolver that are kept.
	maxIdle = 4
	// cooldown is the time for which a resolver that does not answer is asked last.
	cooldown = 10 * time.Second
)

// upstream is a resolver.
type upstream struct {
	address netip.AddrPort
	config  *tls.Config

	mu    sync.Mutex
	idle  []idleConn
	until time.Time // the end of its cooldown
}

type idleConn struct {
	net.Conn
	since time.Time
}

// newUpstream returns a resolver. Its certificate must be for name; empty: for its address.
func newUpstream(address netip.AddrPort, name string, roots *x509.CertPool, clock func() pki.ClockView) *upstream {
	if name == "" {
		name = address.Addr().String()
	}
	config := pki.ClientConfig(name, roots, clock)
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	return &upstream{address: address, config: config}
}

// ask sends a query and returns the answer. A server may close a kept connection at any time, so a
// failure on a kept connection is repeated on a new one.
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

// exchange sends a query on a connection and reads its answer. The connection is kept afterwards,
// or closed after a failure.
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

// close closes the kept connections.
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

// writeMessage writes a message with its length (RFC 1035, 4.2.2), in a single write.
func writeMessage(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}

// readMessage reads a message of at most 65535 bytes.
func readMessage(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}
