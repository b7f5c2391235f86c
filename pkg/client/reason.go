package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Reasons for a failure of Dial; errors.Is finds them.
var (
	// ErrUnreachable means that no server answers at the address.
	ErrUnreachable = errors.New("the machine cannot be reached")
	// ErrUntrusted means that the server at the address is not the expected machine.
	ErrUntrusted = errors.New("the machine is not the one expected")
	// ErrRefused means that the machine does not accept the caller's certificate.
	ErrRefused = errors.New("the machine refuses your certificate")
	// ErrRevoked is wrapped together with ErrRefused. Its text names two defects, because TLS has
	// only one alert for all defects that a server finds after it has verified the chain of a
	// certificate.
	ErrRevoked = errors.New("it was revoked (`orlopctl trust list`), or is not a client certificate")
)

// unverifiedError is an error of the handshake before the peer proved its identity. Alerts at that
// time are not encrypted, so any host on the path can forge them. In particular, an alert about the
// caller's certificate cannot be genuine at that time: a server verifies this certificate only
// after it has sent its own Finished message (RFC 8446).
type unverifiedError struct{ error }

func (e unverifiedError) Unwrap() error { return e.error }

type fingerprintError struct{ want, got string }

func (e *fingerprintError) Error() string {
	return fmt.Sprintf("its key is %s, expected %s", e.got, e.want)
}

// remoteAlert is the prefix of the errors of crypto/tls for alerts from the peer.
const remoteAlert = "remote error: tls: "

// noProtocol is the text of crypto/tls for the alert no_application_protocol: the machine does not
// offer the protocol that the client requests.
const noProtocol = remoteAlert + "no application protocol"

// alert is a TLS alert of a machine (RFC 8446, section 6.2): its text in crypto/tls, and its
// meaning.
type alert struct {
	alert   string
	meaning error
}

// noCertificate is the alert that a machine sends while it has no server certificate.
var noCertificate = alert{"internal error", errors.New("the machine has no certificate yet; try again")}

// alerts are the alerts about the caller's certificate.
var alerts = []alert{
	{"certificate required", errors.New("the client sent none")},
	{"expired certificate", errors.New("it has expired or is not valid yet by the machine's clock; create a new one with `orlopctl gen client` and the operator's CA, or request one from an admin (`orlopctl trust issue`)")},
	{"unknown certificate authority", errors.New("this machine does not trust the CA that signed it; use a certificate of the operator whose CA the image contains or with whom the machine was paired; an unclaimed machine shows a pairing code on its console: `orlopctl pair`")},
	{"bad certificate", ErrRevoked},
}

// reasonOf maps an error of the connection to a reason above, with an explanation.
func reasonOf(err error) error {
	if err == nil {
		return fmt.Errorf("%w: the connection ended without a reason", ErrUnreachable)
	}
	for _, known := range []error{ErrUnreachable, ErrUntrusted, ErrRefused} {
		if errors.Is(err, known) {
			return err
		}
	}
	var fingerprint *fingerprintError
	var verify *tls.CertificateVerificationError
	var name x509.HostnameError
	switch {
	case errors.As(err, &fingerprint):
		return fmt.Errorf("%w: %w; compare with the fingerprint on the machine's console", ErrUntrusted, fingerprint)
	case errors.As(err, &name):
		return fmt.Errorf("%w: %w; name the machine with --server-name", ErrUntrusted, name)
	case errors.As(err, &verify):
		return fmt.Errorf("%w: %w", ErrUntrusted, verify.Err)
	}
	if early := (unverifiedError{}); errors.As(err, &early) && strings.Contains(err.Error(), remoteAlert) {
		if strings.Contains(err.Error(), remoteAlert+noCertificate.alert) {
			return fmt.Errorf("%w: %w", ErrUnreachable, noCertificate.meaning)
		}
		return fmt.Errorf("%w: the connection ended before the server proved its identity: %w", ErrUntrusted, err)
	}
	for _, a := range alerts {
		if strings.Contains(err.Error(), remoteAlert+a.alert) {
			return fmt.Errorf("%w: %w", ErrRefused, a.meaning)
		}
	}
	if strings.Contains(err.Error(), remoteAlert) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: the server accepts the connection and sends no data; is this the port of the machine's API, and has the machine booted?", ErrUnreachable)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// lastError holds the newest error of a connection, because gRPC reports only the text of the
// error.
type lastError struct {
	mu  sync.Mutex
	err error
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lastError) reason() error { return reasonOf(l.get()) }

// watchedTLS stores the error of a failed handshake. In TLS 1.3 a client completes the handshake
// before the server has verified the client certificate, so a rejection arrives only with the first
// read after the handshake. watchedTLS reads before it writes: a server that has closed the
// connection answers written data with a reset, and the reset discards the unread rejection. The
// early read does not block, because the server sends the first data, its settings (RFC 9113,
// section 3.4).
type watchedTLS struct {
	credentials.TransportCredentials
	seen *lastError
	peer *atomic.Pointer[x509.Certificate] // verified certificate of the machine
}

// ClientHandshake implements credentials.TransportCredentials.
func (w *watchedTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		w.seen.set(unverifiedError{err})
		return conn, info, err
	}
	first, err := readFirst(ctx, conn)
	if err != nil {
		w.seen.set(err)
		return nil, nil, errors.Join(err, conn.Close())
	}
	w.seen.set(nil)
	if tls, ok := info.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
		w.peer.Store(tls.State.PeerCertificates[0])
	}
	return &watchedConn{Conn: conn, seen: w.seen, unread: first}, info, nil
}

// readFirst reads the first data of the machine.
func readFirst(ctx context.Context, conn net.Conn) ([]byte, error) {
	// If SetReadDeadline fails, the read fails, too.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	first := make([]byte, 4<<10)
	n, err := conn.Read(first)
	switch {
	case !stop():
		return nil, context.Cause(ctx)
	case n > 0:
		return first[:n], nil
	case err == nil:
		return nil, io.ErrNoProgress
	}
	return nil, err
}

// Clone implements credentials.TransportCredentials.
func (w *watchedTLS) Clone() credentials.TransportCredentials {
	return &watchedTLS{TransportCredentials: w.TransportCredentials.Clone(), seen: w.seen, peer: w.peer}
}

type watchedConn struct {
	net.Conn
	seen   *lastError
	unread []byte // read already by readFirst
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(b, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.seen.set(err)
	}
	return n, err
}
