// Package clienttest connects the machines of a test.
package clienttest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Wire connects the machines of a test over loopback. It maps the addresses that the test uses to
// listeners.
type Wire struct {
	leaf      *pki.Leaf
	pool      *x509.CertPool
	listeners map[netip.Addr]string
}

// NewWire returns a Wire without machines.
func NewWire(t *testing.T) Wire {
	t.Helper()
	ca, err := pki.NewCA("transport", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := Wire{pool: x509.NewCertPool(), listeners: map[netip.Addr]string{}}
	w.pool.AddCert(ca.Cert)
	if w.leaf, err = ca.Issue(pki.Spec{CN: "m", Usage: pki.Server, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return w
}

// Serve starts the server of a machine, to which Dial connects for the address addr.
func (w Wire) Serve(t *testing.T, addr netip.Addr, register func(*grpc.Server), options ...grpc.ServerOption) {
	t.Helper()
	server := grpc.NewServer(append(options, grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{w.leaf.Cert.Raw}, PrivateKey: w.leaf.Key})))...)
	register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.listeners[addr] = l.Addr().String()
	go func() { _ = server.Serve(l) }() // returns after server.Stop
	t.Cleanup(server.Stop)
}

// Dial connects to the server of a machine.
func (w Wire) Dial(ctx context.Context, addr netip.Addr) (*client.Client, error) {
	return client.Dial(ctx, client.Endpoint{Address: w.listeners[addr], CA: w.pool})
}
