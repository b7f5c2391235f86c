package nts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/miscreant/miscreant.go"
)

// Port is the port of key exchanges (RFC 8915 section 7.1).
const Port = 4460

const (
	portNTP = 123
	// exchangeTimeout is the timeout of a key exchange, including the connection.
	exchangeTimeout = 5 * time.Second
	// application is the protocol name of the key exchange in TLS ALPN (RFC 8915 section 7.2).
	application = "ntske/1"
	exportLabel = "EXPORTER-network-time-security"
	keySize     = 32
)

// Session holds the keys and cookies for a server. It serves one request at a time.
type Session struct {
	address          string
	certificates     []*x509.Certificate
	toServer, toHost *miscreant.Cipher
	cookies          [][]byte
	id               []byte // unique identifier of the last request
	answered         bool
}

// Address returns the address of the NTP server, with its port.
func (s *Session) Address() string { return s.address }

// Certificates returns the certificates that the server sent in the key exchange, its own
// certificate first.
func (s *Session) Certificates() []*x509.Certificate { return s.certificates }

// Answered reports whether an authenticated answer has arrived since the last call of Answered.
func (s *Session) Answered() bool {
	answered := s.answered
	s.answered = false
	return answered
}

// Cookies returns the number of cookies that are left. Each request uses one; answers bring new
// ones.
func (s *Session) Cookies() int { return len(s.cookies) }

// Exchange performs a key exchange with a server and returns the session. server is an address or
// name with a port. config checks the certificate of the server.
func Exchange(ctx context.Context, server string, config *tls.Config) (*Session, error) {
	deadline := time.Now().Add(exchangeTimeout)
	raw, err := (&net.Dialer{Deadline: deadline}).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	if err := raw.SetDeadline(deadline); err != nil {
		return nil, err
	}
	config = config.Clone()
	config.MinVersion, config.NextProtos = tls.VersionTLS13, []string{application}
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != application {
		return nil, errors.New("the server does not offer key exchanges of NTS (application protocol " + application + ")")
	}
	if _, err := conn.Write(request()); err != nil {
		return nil, err
	}
	a, err := readAnswer(conn)
	if err != nil {
		return nil, err
	}
	return newSession(state, a, raw.RemoteAddr())
}

// newSession returns the session of a key exchange. It derives the keys from the TLS connection
// (RFC 8915 section 5.1).
func newSession(state tls.ConnectionState, a answer, server net.Addr) (*Session, error) {
	s := &Session{certificates: state.PeerCertificates, cookies: a.cookies}
	for direction, cipher := range []**miscreant.Cipher{&s.toServer, &s.toHost} {
		key, err := state.ExportKeyingMaterial(exportLabel, []byte{0, protocolNTP, 0, algorithmSIV, byte(direction)}, keySize)
		if err != nil {
			return nil, fmt.Errorf("cannot derive a key: %w", err)
		}
		if *cipher, err = miscreant.NewAESCMACSIV(key); err != nil {
			return nil, fmt.Errorf("cannot use a key: %w", err)
		}
	}
	host := a.host
	if host == "" { // Use the address of this connection: other servers can have the same name.
		var err error
		if host, _, err = net.SplitHostPort(server.String()); err != nil {
			return nil, err
		}
	}
	s.address = net.JoinHostPort(host, strconv.Itoa(int(a.port)))
	return s, nil
}
