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
	"time"

	"google.golang.org/grpc/credentials"
)

// The reasons for which Dial fails; errors.Is finds them.
var (
	// ErrUnreachable: nothing answers at the address.
	ErrUnreachable = errors.New("the machine cannot be reached")
	// ErrUntrusted: something answers that is not the machine which was asked for.
	ErrUntrusted = errors.New("the machine is not the one expected")
	// ErrRefused: the machine does not accept the caller's certificate.
	ErrRefused = errors.New("the machine refuses your certificate")
	// ErrRevoked is why, with ErrRefused: TLS knows one alert for what a server finds wrong with a
	// certificate after it was verified.
	ErrRevoked = errors.New("it was revoked (`orlopctl trust list`), or is not a client certificate at all")
)

// unverifiedError ended a handshake. Nobody had shown yet who he is, and an alert that comes so
// early is not encrypted: anybody on the way can have sent it. What it says of the caller's
// certificate is no verdict (RFC 8446: a server judges it after its own Finished).
type unverifiedError struct{ error }

func (e unverifiedError) Unwrap() error { return e.error }

type fingerprintError struct{ want, got string }

func (e *fingerprintError) Error() string {
	return fmt.Sprintf("its key is %s, expected %s", e.got, e.want)
}

// remoteAlert begins what Go says of an alert that the other side has sent.
const remoteAlert = "remote error: tls: "

// noProtocol is Go's word for the alert no_application_protocol: the machine is not there for what
// the connection was made for.
const noProtocol = remoteAlert + "no application protocol"

// An alert is what a machine means by a TLS alert (RFC 8446, section 6.2), by Go's own words for
// it.
type alert struct {
	alert   string
	meaning error
}

// noCertificate comes before a machine has shown who it is: it has nothing yet to show.
var noCertificate = alert{"internal error", errors.New("the machine's door has no certificate of its own yet; try again")}

// alerts are those about the caller's certificate.
var alerts = []alert{
	{"certificate required", errors.New("you sent none")},
	{"expired certificate", errors.New("it has expired or is not valid yet by the machine's clock; make a new one with `orlopctl gen client` and the operator's CA, or ask an admin for one (`orlopctl trust issue`)")},
	{"unknown certificate authority", errors.New("it was signed by a CA that this machine does not know; use the certificate of the operator that the image was built for, or that the machine was paired with; one that belongs to nobody yet shows a code on its console: `orlopctl pair`")},
	{"bad certificate", ErrRevoked},
}

// reasonOf turns an error of the connection into one of the reasons above with a sentence.
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
		return fmt.Errorf("%w: something ends the connection before it has shown who it is: %w", ErrUntrusted, err)
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
		return fmt.Errorf("%w: something accepts the connection and says nothing; is this the port of the machine's API, and is the machine up?", ErrUnreachable)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// lastError holds the newest error of a connection. gRPC itself reports only a text.
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

// watchedTLS remembers why a handshake failed. In TLS 1.3 a client has finished before the server
// has looked at its certificate, so a refusal arrives with the first read after the handshake. That
// read comes before anything is written: a server that has closed the connection answers what is
// still sent with a reset, which takes the refusal away unread. A machine speaks first (its
// settings, RFC 9113, section 3.4), so nothing is lost by it.
type watchedTLS struct {
	credentials.TransportCredentials
	seen *lastError
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
	return &watchedConn{Conn: conn, seen: w.seen, first: first}, info, nil
}

// readFirst reads what the machine says first.
func readFirst(ctx context.Context, conn net.Conn) ([]byte, error) {
	// the read tells whether it has ended
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
	return &watchedTLS{TransportCredentials: w.TransportCredentials.Clone(), seen: w.seen}
}

type watchedConn struct {
	net.Conn
	seen  *lastError
	first []byte // read already
}

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.seen.set(err)
	}
	return n, err
}
