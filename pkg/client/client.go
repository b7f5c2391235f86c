// Package client is a client of the management API of an Orlop OS machine. It establishes a
// mutually authenticated connection, and explains in a sentence why a connection failed.
//
// A machine is verified in one of two ways: by the cluster's machine CA (the usual way), or by the
// fingerprint of its key (for the first contact, before the machine is part of a cluster). The
// console of the machine shows the fingerprint, or Pair obtains it by means of the pairing code.
//
// The package stores no files and does not know the contexts of orlopctl.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Endpoint is the address of a machine with the data for its verification.
type Endpoint struct {
	Address string          // host or host:port; the default port is 50000
	Cert    tls.Certificate // the caller's certificate with its key

	// Exactly one of the following two fields is set; it verifies the machine.
	CA          *x509.CertPool // the cluster's machine CA
	Fingerprint string         // fingerprint of the machine's key (pki.Fingerprint)

	// Fallback are the addresses of other machines of the cluster that can serve the same calls.
	// Dial tries them in order when the machine at Address does not accept the connection. They can
	// be used only with CA: each machine's certificate must contain the host of its own address.
	Fallback []string
	// Pool, if not nil, stores the first machine that accepted a connection; later calls of Dial
	// try only that machine.
	Pool *ConnPool

	// Accepts, if not nil, checks the certificate of a machine after its verification by CA; an
	// error rejects the machine. It is needed because a machine that has left the cluster still has
	// a valid certificate, and a worker can have valid certificates for its former addresses.
	Accepts func(*x509.Certificate) error

	// BeforeCall, if not nil, gets the first request of each call before it is sent. It can change
	// the request. An error rejects the call.
	BeforeCall func(ctx context.Context, c *Client, method string, request proto.Message) error

	// ServerName is the name or address that the machine's certificate must contain; the host of
	// Address if empty. It is not checked if the machine is verified by its fingerprint.
	ServerName string
	// Dialer opens the TCP connection; nil for the default.
	Dialer func(ctx context.Context, address string) (net.Conn, error)
}

// Client is a connection to a machine. All its services share the connection.
type Client struct {
	Machine api.MachineClient
	Config  api.ConfigClient
	Service api.ServiceClient
	Log     api.LogClient
	Image   api.ImageClient
	Cluster api.ClusterClient
	Upgrade api.UpgradeClient
	Audit   api.AuditClient
	Trust   api.TrustClient
	Debug   api.DebugClient
	Etcd    api.EtcdClient

	Attestation api.AttestationClient

	// the connection for the calls of all services; a *grpc.ClientConn, unless the caller owns it
	// (Over)
	calls   grpc.ClientConnInterface
	address string      // host:port; empty for a client of Over
	watch   *watchedTLS // nil for a client of Over
}

// maxMessage is the maximum size of a message in bytes, in either direction; apid has the same
// limit.
const maxMessage = 4 << 20

// Dial connects to a machine. It returns when the machine has accepted the connection, or with the
// reason for the failure (ErrUnreachable, ErrUntrusted, ErrRefused). It tries each address once; a
// caller that waits for a machine to boot calls Dial again.
func Dial(ctx context.Context, e Endpoint) (*Client, error) {
	if address := e.Pool.get(); address != "" {
		e.Address, e.Fallback = address, nil
	}
	if len(e.Fallback) == 0 {
		return dial(ctx, e)
	}
	if e.CA == nil || e.ServerName != "" {
		return nil, errors.New("machine: cannot connect: several addresses cannot be combined with the fingerprint or the name of one machine; use only the cluster's machine CA")
	}
	var failed Failures
	all := append([]string{e.Address}, e.Fallback...)
	for i, address := range all {
		e.Address = address
		c, err := dialWithin(ctx, e, len(all)-i)
		if err == nil {
			e.Pool.set(address)
			return c, nil
		}
		failed = append(failed, err)
	}
	return nil, failed
}

// ConnPool stores the machine that accepted the first connection, so that related calls go to the
// same machine. The zero value stores no machine.
type ConnPool struct {
	mu      sync.Mutex
	address string
}

func (s *ConnPool) get() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address
}

func (s *ConnPool) set(address string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = address
}

// attemptTimeout is the timeout for each machine except the last one that Dial tries.
const attemptTimeout = 5 * time.Second

// dialWithin tries the machine of e. left is the number of machines to try, this one included. For
// each machine except the last one, dialWithin limits the time, so that enough is left for the
// others.
func dialWithin(ctx context.Context, e Endpoint, left int) (*Client, error) {
	if left > 1 {
		limit := attemptTimeout
		if end, ok := ctx.Deadline(); ok {
			limit = min(limit, time.Until(end)/time.Duration(left))
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return dial(ctx, e)
}

// Failures are the errors of all machines that Dial has tried.
type Failures []error

func (f Failures) Error() string {
	var all []string
	for _, err := range f {
		all = append(all, err.Error())
	}
	return strings.Join(all, "; ")
}

func (f Failures) Unwrap() []error { return f }

// Over returns a client over a connection that the caller owns. Connected always returns true for
// this client, and Close does nothing.
func Over(conn grpc.ClientConnInterface) *Client {
	return &Client{
		calls:   conn,
		Machine: api.NewMachineClient(conn),
		Config:  api.NewConfigClient(conn),
		Service: api.NewServiceClient(conn),
		Log:     api.NewLogClient(conn),
		Image:   api.NewImageClient(conn),
		Cluster: api.NewClusterClient(conn),
		Upgrade: api.NewUpgradeClient(conn),
		Audit:   api.NewAuditClient(conn),
		Trust:   api.NewTrustClient(conn),
		Debug:   api.NewDebugClient(conn),
		Etcd:    api.NewEtcdClient(conn),

		Attestation: api.NewAttestationClient(conn),
	}
}

func dial(ctx context.Context, e Endpoint) (*Client, error) {
	address, err := withPort(e.Address)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(e, address)
	if err != nil {
		return nil, err
	}
	watch := &watchedTLS{TransportCredentials: credentials.NewTLS(config), seen: &lastError{}, peer: new(atomic.Pointer[x509.Certificate])}
	dialer := e.Dialer
	if dialer == nil {
		dialer = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	names, before := new(methodNames), &beforeCall{do: e.BeforeCall}
	// The target is a placeholder, because the dialer has the address. gRPC requires a URL as the
	// target, and some addresses are invalid in a URL, for example addresses with a zone.
	conn, err := grpc.NewClient("passthrough:///machine",
		grpc.WithTransportCredentials(watch),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := dialer(ctx, address)
			if err != nil {
				watch.seen.set(fmt.Errorf("%w: %w", ErrUnreachable, err))
			}
			return conn, err
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithChainUnaryInterceptor(before.unary, names.unary), grpc.WithChainStreamInterceptor(before.stream, names.stream),
	)
	if err != nil {
		return nil, fmt.Errorf("machine %s: cannot connect: %w", address, err)
	}
	c := Over(conn)
	c.address, c.watch, before.client = address, watch, c
	if err := c.connect(ctx); err != nil {
		_ = conn.Close() // no error matters: the connection was never established
		return nil, fmt.Errorf("machine %s: cannot connect: %w", address, err)
	}
	return c, nil
}

// connect waits until the machine has accepted or rejected the connection.
func (c *Client) connect(ctx context.Context) error {
	conn := c.own()
	conn.Connect()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return c.watch.seen.reason()
		case connectivity.Idle:
			// The connection was established and lost between two checks.
			if err := c.watch.seen.get(); err != nil {
				return reasonOf(err)
			}
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			if err := c.watch.seen.get(); err != nil {
				return reasonOf(err)
			}
			return fmt.Errorf("%w: no answer in time: %w", ErrUnreachable, context.Cause(ctx))
		}
	}
}

// Conn returns the connection, for services without a field in Client (health, reflection).
func (c *Client) Conn() grpc.ClientConnInterface { return c.calls }

// own returns the connection that the client has established itself. It returns nil for a client of
// Over.
func (c *Client) own() *grpc.ClientConn {
	if c.watch == nil {
		return nil
	}
	return c.calls.(*grpc.ClientConn)
}

// Connected reports whether the connection is established. The client may not have noticed its loss
// yet.
func (c *Client) Connected() bool {
	conn := c.own()
	return conn == nil || conn.GetState() == connectivity.Ready
}

// Close ends the connection and every call on it.
func (c *Client) Close() error {
	conn := c.own()
	if conn == nil {
		return nil
	}
	if err := conn.Close(); err != nil {
		return fmt.Errorf("machine %s: cannot close the connection: %w", c.address, err)
	}
	return nil
}

// withPort adds the API's port to an address without a port.
func withPort(address string) (string, error) {
	if address == "" {
		return "", errors.New("machine: cannot connect: no address given")
	}
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address, nil
	}
	host := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	// ParseAddr accepts the zone of a link-local address (RFC 4007, 11)
	if _, err := netip.ParseAddr(host); strings.Contains(host, ":") && err != nil {
		return "", fmt.Errorf("machine %q: cannot connect: expected host, host:port or [IPv6]:port", address)
	}
	return net.JoinHostPort(host, strconv.Itoa(paths.PortApid)), nil
}

func tlsConfig(e Endpoint, address string) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"},
		ServerName: e.ServerName,
		// Always send the certificate, also if the CAs in the machine's request do not include its
		// CA: the error "unknown CA" is more helpful than "no certificate".
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &e.Cert, nil },
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("machine %q: cannot connect: %w", address, err)
		}
		config.ServerName = host
		if addr, err := netip.ParseAddr(host); err == nil {
			config.ServerName = addr.WithZone("").String() // certificates contain no zones
		}
	}
	switch {
	case e.CA != nil && e.Fingerprint != "":
		return nil, errors.New("machine: cannot connect: use either a CA or a fingerprint")
	case e.CA != nil:
		config.RootCAs = e.CA
		if e.Accepts != nil {
			config.VerifyConnection = func(state tls.ConnectionState) error {
				if err := e.Accepts(state.PeerCertificates[0]); err != nil {
					return fmt.Errorf("%w: %w", ErrUntrusted, err)
				}
				return nil
			}
		}
	case e.Fingerprint != "":
		pinned, err := pki.ParseFingerprint(e.Fingerprint)
		if err != nil {
			return nil, err
		}
		// Before the machine is part of a cluster, neither the chain nor the name of its
		// certificate can be verified. VerifyConnection compares the key instead.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if got := pki.Fingerprint(state.PeerCertificates[0]); got != pinned {
				return &fingerprintError{want: pinned, got: got}
			}
			return nil
		}
	default:
		return nil, errors.New("machine: cannot connect: a CA or a fingerprint is required to verify the machine")
	}
	return config, nil
}
