package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/orlop-os/orlop/pkg/pki"
)

func TestAddress(t *testing.T) {
	cases := map[string]string{
		"m1": "m1:50000", "m1:1": "m1:1", "192.0.2.1": "192.0.2.1:50000", "2001:db8::1": "[2001:db8::1]:50000",
		"[2001:db8::1]": "[2001:db8::1]:50000", "[2001:db8::1]:7": "[2001:db8::1]:7", "": "", "a:b:c": "",
	}
	for in, want := range cases {
		got, err := withPort(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("withPort(%q): got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestIncompleteEndpoints(t *testing.T) {
	pool := x509.NewCertPool()
	print := "sha256:" + strings.Repeat("0", 64)
	for name, e := range map[string]Endpoint{
		"no address":         {CA: pool},
		"no verification":    {Address: "m1"},
		"CA and fingerprint": {Address: "m1", CA: pool, Fingerprint: print},
		"bad fingerprint":    {Address: "m1", Fingerprint: "sha256:0"},
	} {
		if _, err := Dial(t.Context(), e); err == nil {
			t.Errorf("%s: Dial returned no error", name)
		}
	}
}

// TestUnreachable checks the errors of Dial for servers that are not machines of the cluster.
func TestUnreachable(t *testing.T) {
	leaf, err := pki.SelfSigned(pki.Spec{CN: "x", Usage: pki.Both, TTL: time.Hour, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
	other, err := pki.NewCA("other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(other.Cert)
	cases := []struct {
		name  string
		serve func(net.Conn) // nil if the server closes the connection at once
		pin   bool
		want  error
	}{
		{"closes the connection at once", nil, true, ErrUnreachable},
		{"sends nothing", func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); _, _ = c.Read(make([]byte, 1<<16)) }, true, ErrUnreachable},
		{"speaks another protocol", func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-x\r\n")) }, true, ErrUnreachable},
		{"has a certificate of another CA", serveTLS(pair), false, ErrUntrusted},
		// Any host on the path can send this alert before the keys are established: TLS 1.2 in the
		// record, level fatal, bad_certificate (RFC 8446, section 6).
		{"sends an unencrypted alert", func(c net.Conn) { _, _ = c.Read(make([]byte, 1<<12)); _, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 42}) }, true, ErrUntrusted},
		{"speaks TLS but not HTTP/2", serveTLS(pair), true, ErrUnreachable},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			address := listen(t, c.serve)
			e := Endpoint{Address: address, Cert: pair, CA: roots}
			if c.pin {
				e.CA, e.Fingerprint = nil, pki.Fingerprint(leaf.Cert)
			}
			// Some of these servers let the client wait until its deadline. All others answer
			// before the deadline, even on a busy computer.
			limit := 2 * time.Second
			if c.want == ErrUntrusted {
				limit = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := Dial(ctx, e)
			if errors.Is(err, ErrRevoked) || errors.Is(err, ErrRefused) || !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), "machine "+address+": cannot connect: ") {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestDialerIsUsed(t *testing.T) {
	refused := errors.New("the closed network refuses")
	e := Endpoint{Address: "m1", Fingerprint: "sha256:" + strings.Repeat("0", 64), Dialer: func(_ context.Context, address string) (net.Conn, error) {
		if address != "m1:50000" {
			t.Errorf("dialed %s", address)
		}
		return nil, refused
	}}
	if _, err := Dial(t.Context(), e); !errors.Is(err, refused) || !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

func serveTLS(pair tls.Certificate) func(net.Conn) {
	return func(c net.Conn) {
		server := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
		if server.Handshake() == nil {
			_, _ = server.Write([]byte("hello\n"))
		}
	}
}

// listen starts a TCP server that calls the function serve for each connection, and returns its
// address. If serve is nil, the server only closes the connection.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				if serve != nil {
					serve(conn)
				}
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// TestAccepts checks that Accepts can reject a machine that the CA has verified, and that the error
// is ErrUntrusted.
func TestAccepts(t *testing.T) {
	ca, err := pki.NewCA("machines", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "w1", Usage: pki.Both, TTL: time.Hour, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	var seen *x509.Certificate
	e := Endpoint{Address: listen(t, serveTLS(pair)), Cert: pair, CA: roots, Accepts: func(cert *x509.Certificate) error {
		seen = cert
		return errors.New("it was removed from the cluster")
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := Dial(ctx, e); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "it was removed from the cluster") {
		t.Errorf("Accepts returned an error, and Dial returned %v", err)
	}
	if !leaf.Cert.Equal(seen) {
		t.Errorf("Accepts got the certificate %v", seen)
	}
	e.Accepts = func(*x509.Certificate) error { return nil }
	if _, err := Dial(ctx, e); errors.Is(err, ErrUntrusted) {
		t.Errorf("Accepts returned nil, and Dial returned %v", err)
	}
}

// TestOver checks a client that uses a connection of the caller: Conn returns this connection, and
// Close does not close it.
func TestOver(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///machine", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := Over(conn)
	if c.Conn() != conn || !c.Connected() {
		t.Errorf("connection %v, connected %t", c.Conn(), c.Connected())
	}
	if err := c.Close(); err != nil || conn.GetState() == connectivity.Shutdown {
		t.Errorf("the connection of the caller is closed: %v", err)
	}
}
