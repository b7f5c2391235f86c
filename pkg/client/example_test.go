package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Query the versions of a machine. The client certificate comes from `orlopctl trust issue` or
// `orlopctl gen client`; the CA is the cluster's machine CA.
func Example() {
	address, cert, machineCA := startMachine()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Endpoint{Address: address, Cert: cert, CA: machineCA})
	if err != nil {
		fmt.Println(err) // a sentence with the reason
		return
	}
	defer c.Close()
	version, err := c.Machine.Version(ctx, &api.VersionRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(version.Machine, "runs", version.Version, "with Kubernetes", version.Kubernetes)
	// Output: m1 runs 1.2.3 with Kubernetes v1.37.2
}

// Watch the events of a machine, starting after the cursor of the last event that was received.
func Example_events() {
	address, cert, machineCA := startMachine()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Endpoint{Address: address, Cert: cert, CA: machineCA})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	var last uint64 = 1
	events, err := c.Machine.Events(ctx, &api.EventsRequest{After: last})
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		last = e.Cursor
		fmt.Println(e.Source, e.Message)
	}
	fmt.Println("next time after", last)
	// Output:
	// network address 10.0.0.11
	// next time after 2
}

// Detect that another server answers at a machine's address.
func ExampleDial_untrusted() {
	address, cert, _ := startMachine()
	_, _, ofAnotherCluster := startMachine()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := client.Dial(ctx, client.Endpoint{Address: address, Cert: cert, CA: ofAnotherCluster})
	fmt.Println(errors.Is(err, client.ErrUntrusted))
	// Output: true
}

// machine implements the calls of the examples.
type machine struct{ api.UnimplementedMachineServer }

func (machine) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{Machine: "m1", Version: "1.2.3", Kubernetes: "v1.37.2"}, nil
}

func (machine) Events(r *api.EventsRequest, to grpc.ServerStreamingServer[api.Event]) error {
	for cursor, message := range map[uint64]string{1: "the clock is right", 2: "address 10.0.0.11"} {
		if cursor <= r.After {
			continue
		}
		if err := to.Send(&api.Event{Cursor: cursor, Source: "network", Message: message}); err != nil {
			return err
		}
	}
	return nil
}

// startMachine serves the API on loopback and returns the data that a caller has: the address, a
// certificate, the machine CA. The server runs until the test binary exits.
func startMachine() (address string, cert tls.Certificate, machineCA *x509.CertPool) {
	ca, err := pki.NewCA("example", time.Hour)
	must(err)
	own, err := ca.Issue(pki.Spec{CN: "m1", IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Usage: pki.Server, TTL: time.Hour})
	must(err)
	caller, err := ca.Issue(pki.Spec{CN: "alice", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: time.Hour})
	must(err)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair(own)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	})))
	api.RegisterMachineServer(server, machine{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() { must(server.Serve(listener)) }()
	return listener.Addr().String(), pair(caller), pool
}

func pair(leaf *pki.Leaf) tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
