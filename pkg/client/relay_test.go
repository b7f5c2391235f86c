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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/relay"
)

// fakeMachine is a machine that returns its name and relays to the machines that it knows.
type fakeMachine struct {
	api.UnimplementedMachineServer
	name    string
	address string
	others  map[string]string // IP address → host:port
}

func (s *fakeMachine) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{Machine: s.name}, nil
}

func (s *fakeMachine) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	address, known := s.others[first.Target]
	if !known {
		return status.Error(codes.NotFound, "nobody knows "+first.Target)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	if err := stream.Send(&api.RelayData{}); err != nil {
		return err
	}
	return relay.Join(stream, conn, time.Minute)
}

// newFakeMachine starts a fakeMachine with a certificate that contains an address and 127.0.0.1.
func newFakeMachine(t *testing.T, ca *pki.CA, name, ip string) *fakeMachine {
	t.Helper()
	leaf, err := ca.Issue(pki.Spec{CN: name, Usage: pki.Server, TTL: time.Hour, IPs: []netip.Addr{netip.MustParseAddr(ip), netip.MustParseAddr("127.0.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeMachine{name: name, address: listener.Addr().String(), others: map[string]string{}}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key})))
	api.RegisterMachineServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return s
}

func newCA(t *testing.T) (*pki.CA, *x509.CertPool) {
	t.Helper()
	ca, err := pki.NewCA("machines", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return ca, pool
}

// TestRelay checks that the caller verifies the other machine itself, independent of the relaying
// machine.
func TestRelay(t *testing.T) {
	ca, pool := newCA(t)
	foreign, _ := newCA(t)
	between := newFakeMachine(t, ca, "m1", "10.0.0.11")
	between.others["10.0.0.12"] = newFakeMachine(t, ca, "m2", "10.0.0.12").address
	between.others["10.0.0.13"] = between.others["10.0.0.12"]
	between.others["10.0.0.14"] = newFakeMachine(t, foreign, "m4", "10.0.0.14").address
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first, err := Dial(ctx, Endpoint{Address: between.address, CA: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	call := func(ip string) (string, error) {
		dialing, done := context.WithTimeout(ctx, 20*time.Second)
		c, err := Dial(dialing, Endpoint{Address: ip, CA: pool, Dialer: first.Relay})
		done() // the connection must outlive the context of Dial
		if err != nil {
			return "", err
		}
		defer c.Close()
		answer, err := c.Machine.Version(ctx, &api.VersionRequest{})
		return answer.GetMachine(), err
	}
	if got, err := call("10.0.0.12"); got != "m2" || err != nil {
		t.Errorf("Version of the other machine: %q, %v", got, err)
	}
	for ip, want := range map[string]string{"10.0.0.13": "not 10.0.0.13", "10.0.0.14": "unknown authority"} {
		if got, err := call(ip); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", ip, got, err)
		}
	}
	_, err = call("10.0.0.15")
	if want := "through machine " + between.address + ": rpc error: code = NotFound desc = nobody knows 10.0.0.15"; !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), want) {
		t.Errorf("an address that the relaying machine does not know: %v", err)
	}
	late, done := context.WithCancel(ctx)
	done()
	if conn, err := first.Relay(late, "10.0.0.12:1"); conn != nil || err == nil {
		t.Errorf("Relay with a canceled context: %v, %v", conn, err)
	}
}

// TestFallback checks that Dial uses the first machine that accepts the connection, and that the
// error contains the reason of each machine if all fail.
func TestFallback(t *testing.T) {
	ca, pool := newCA(t)
	foreign, _ := newCA(t)
	good, stranger := newFakeMachine(t, ca, "m1", "10.0.0.11"), newFakeMachine(t, foreign, "m2", "10.0.0.12")
	silent := listen(t, func(c net.Conn) { // until the client closes the connection
		for b := make([]byte, 1<<10); ; {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The silent machine takes half of the remaining time, attemptTimeout at most. The rest is long
	// enough for a handshake on a busy computer.
	within, done := context.WithTimeout(ctx, 20*time.Second)
	defer done()
	c, err := Dial(within, Endpoint{Address: "127.0.0.1:1", Fallback: []string{stranger.address, silent, good.address}, CA: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if answer, err := c.Machine.Version(ctx, &api.VersionRequest{}); err != nil || answer.Machine != "m1" || !c.Connected() {
		t.Errorf("%v, %v", answer, err)
	}
	// A caller with a ConnPool stays at the same machine, even if that machine does not answer.
	stay := new(ConnPool)
	again := Endpoint{Address: "127.0.0.1:1", Fallback: []string{good.address}, CA: pool, Pool: stay}
	first, err := Dial(ctx, again)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	again.Address, again.Fallback = stranger.address, []string{"127.0.0.1:1"}
	second, err := Dial(ctx, again)
	if err != nil {
		t.Fatalf("Dial with the stored address of the pool: %v", err)
	}
	second.Close()
	stay.set("127.0.0.1:1")
	again.Address = good.address
	if _, err := Dial(ctx, again); !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), good.address) {
		t.Errorf("the machine of the pool is unreachable: %v", err)
	}
	_, err = Dial(ctx, Endpoint{Address: "127.0.0.1:1", Fallback: []string{stranger.address}, CA: pool})
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), "connection refused; machine "+stranger.address+": cannot connect: the machine is not the one expected: ") {
		t.Errorf("no machine accepts the connection: %v", err)
	}
	for name, e := range map[string]Endpoint{
		"several addresses and a fingerprint": {Address: "a", Fallback: []string{"b"}, Fingerprint: "sha256:" + strings.Repeat("0", 64)},
		"several addresses and a server name": {Address: "a", Fallback: []string{"b"}, CA: pool, ServerName: "m1"},
	} {
		if _, err := Dial(ctx, e); err == nil || !strings.Contains(err.Error(), "several addresses") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
