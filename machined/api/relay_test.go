package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// listening runs the function serve with a listener on a free port, and returns the address of the
// listener.
func listening(t *testing.T, serve func(net.Listener)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return l.Addr().String()
}

// each returns a server that calls the function serve for each connection of a listener.
func each(serve func(net.Conn)) func(net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { serve(c); c.Close() }()
		}
	}
}

// otherMachine starts the API of another machine, and returns its address. The machine has a
// certificate of ca for the address ip.
func otherMachine(t *testing.T, ca *pki.CA, ip string, client tls.ClientAuthType) string {
	t.Helper()
	leaf, err := ca.Issue(pki.Spec{CN: "m2", O: []string{pki.RoleMachine}, Usage: pki.Both, TTL: time.Hour, IPs: []netip.Addr{netip.MustParseAddr(ip)}})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}}, ClientAuth: client, ClientCAs: x509.NewCertPool(),
	})))
	t.Cleanup(s.Stop)
	return listening(t, func(l net.Listener) { s.Serve(l) })
}

// TestDialVerified checks that dialVerified connects only to a machine of the cluster, and that the
// error for any other address reveals nothing about the host there.
func TestDialVerified(t *testing.T) {
	newCA := func() *pki.CA {
		ca, err := pki.NewCA("machines", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ours, foreign := newCA(), newCA()
	own, err := ours.Issue(pki.Spec{CN: "m1", O: []string{pki.RoleMachine}, Usage: pki.Both, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	e := client.Endpoint{CA: x509.NewCertPool(), Cert: tls.Certificate{Certificate: [][]byte{own.Cert.Raw}, PrivateKey: own.Key}}
	e.CA.AddCert(ours.Cert)
	const stranger = "no machine of this cluster is at 127.0.0.1: the server there has no certificate of the machine CA for this address, or does not trust this machine"
	const silent = "no machine answers at 127.0.0.1, port 50000"
	for _, c := range []struct {
		name, address string
		code          codes.Code
		says          string
	}{
		{"a machine", otherMachine(t, ours, "127.0.0.1", tls.RequireAnyClientCert), codes.OK, ""},
		{"a certificate of another CA", otherMachine(t, foreign, "127.0.0.1", tls.NoClientCert), codes.NotFound, stranger},
		{"a certificate for another address", otherMachine(t, ours, "127.0.0.2", tls.NoClientCert), codes.NotFound, stranger},
		{"a machine that does not trust this machine", otherMachine(t, ours, "127.0.0.1", tls.RequireAndVerifyClientCert), codes.NotFound, stranger},
		// This server sends a TLS alert, and no certificate.
		{"an old TLS server", listening(t, each(func(c net.Conn) { tls.Server(c, &tls.Config{MaxVersion: tls.VersionTLS12}).Handshake() })), codes.NotFound, stranger},
		{"a closed port", "127.0.0.1:1", codes.Unavailable, silent},
		{"another service", listening(t, each(func(c net.Conn) { io.WriteString(c, "SSH-2.0-x\r\n") })), codes.Unavailable, silent},
		{"silence", listening(t, each(func(c net.Conn) { io.Copy(io.Discard, c) })), codes.Unavailable, silent},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if c.name == "silence" {
			ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		}
		e.Address = c.address
		conn, err := dialVerified(ctx, e)
		if conn != nil {
			conn.Close()
		}
		if (conn != nil) != (c.code == codes.OK) || status.Code(err) != c.code || status.Convert(err).Message() != c.says {
			t.Errorf("%s: connected: %t, %v", c.name, conn != nil, err)
		}
		cancel()
	}
}

// relaying is a machine with a Relay that connects to this test. The function to gets the test's
// end of each relayed connection.
type relaying struct {
	api.UnimplementedMachineServer
	relays
	to func(net.Conn)
}

func (r *relaying) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return r.serve(stream, func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		r.to(far)
		return near, nil
	})
}

// serveMachine serves m. It returns a function that calls Relay as the caller with the lineage who.
// That function returns the stream, a function that ends the call, and the error.
func serveMachine(t *testing.T, m api.MachineServer) func(who, target string) (stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], end func(), err error) {
	t.Helper()
	s := grpc.NewServer()
	t.Cleanup(s.Stop)
	api.RegisterMachineServer(s, m)
	conn, err := grpc.NewClient(listening(t, func(l net.Listener) { s.Serve(l) }), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func(who, target string) (grpc.BidiStreamingClient[api.RelayData, api.RelayData], func(), error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		t.Cleanup(cancel)
		stream, err := api.NewMachineClient(conn).Relay(metadata.AppendToOutgoingContext(ctx, api.MetadataLineage, who))
		if err == nil {
			err = stream.Send(&api.RelayData{Target: target})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		return stream, cancel, err
	}
}

// TestRelayLimits checks the limits per caller and in total, and that a relay does not count any
// more after its end.
func TestRelayLimits(t *testing.T) {
	others := make(chan net.Conn, maxRelays+1)
	m := &relaying{relays: newRelays(), to: func(c net.Conn) { others <- c }}
	call := serveMachine(t, m)
	refused := func(who, says string) {
		t.Helper()
		if _, _, err := call(who, ""); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", who, err)
		}
	}
	taken := func(who string) (end func()) {
		t.Helper()
		_, end, err := call(who, "")
		if err != nil {
			t.Fatalf("%s: %v", who, err)
		}
		return end
	}
	ends := map[string]func(){}
	for _, who := range []string{"1a", "1b"} {
		for range maxRelaysPerCaller {
			ends[who] = taken(who)
		}
		if who == "1a" {
			refused(who, "of yours")
		}
	}
	refused("1c", "try again, or call another machine")
	// After the end of a call, its connection is closed, and another relay is possible.
	ends["1b"]()
	for range maxRelays - 1 {
		<-others
	}
	last := <-others
	last.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := last.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the call has ended, but its connection is open: %v", err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, _, err := call("1c", ""); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("no relay is possible after the end of another: %v", err)
		}
	}
	running, byCaller := m.limiter.Running()
	if want := map[string]int{"1a": maxRelaysPerCaller, "1b": maxRelaysPerCaller - 1, "1c": 1}; running != maxRelays || !maps.Equal(byCaller, want) {
		t.Errorf("%d relays are counted, by caller %v; want %v", running, byCaller, want)
	}
}

// brokenStream is a stream after its caller has disconnected.
type brokenStream struct {
	grpc.BidiStreamingServer[api.RelayData, api.RelayData]
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s brokenStream) Context() context.Context { return s.ctx }

// Send implements grpc.BidiStreamingServer.
func (brokenStream) Send(*api.RelayData) error {
	return status.Error(codes.Unavailable, "transport is closing")
}

// Close of closedConn fails, because the connection is closed already.
type closedConn struct{ net.Conn }

// Close implements net.Conn.
func (closedConn) Close() error { return net.ErrClosed }

// TestRelayStatus checks that a relay ends with the status of its stream if the caller has
// disconnected.
func TestRelayStatus(t *testing.T) {
	r := newRelays()
	err := r.serve(brokenStream{ctx: t.Context()}, func(context.Context) (net.Conn, error) { return closedConn{}, nil })
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); !ok || s.GRPCStatus().Message() != "transport is closing" {
		t.Errorf("the relay ends with %v, want the status of the stream", err)
	}
}
