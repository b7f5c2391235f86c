package trial

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestConfirmElsewhere checks that a machine with a new address is confirmed at that address, and
// that an unreachable machine is not confirmed.
func TestConfirmElsewhere(t *testing.T) {
	operator, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	fake := machinetest.New(t, operator.CertPEM())
	leaf, err := operator.Issue(pki.Spec{CN: "admin", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := gone.Addr().String()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	usual := client.Endpoint{Address: address, ServerName: "m1", Fingerprint: fake.Fingerprint,
		Cert: tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key, Leaf: leaf.Cert}}
	dials := 0
	c := &Confirmation{Endpoints: EndpointsOf(usual, []string{fake.Address}), BeforeDial: func() { dials++ }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.Run(ctx); err != nil || c.At.Address != fake.Address || dials != 2 {
		t.Errorf("%v, at %s, %d connections of its own", err, c.At.Address, dials)
	}
	lost := &Confirmation{Endpoints: EndpointsOf(usual, nil)}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = lost.Run(soon)
	if code, _ := exit.Code(NotConfirmed(err, 30*time.Second)); err == nil || code != exit.Unreachable {
		t.Errorf("%v, exit status %d", err, code)
	}
}

// TestNotConfirmed checks that the error says what the machine does next, and when.
func TestNotConfirmed(t *testing.T) {
	for left, want := range map[time.Duration]string{30 * time.Second: "to the previous configuration in 30s (at ", 0: "to the previous configuration now (at ", -time.Second: "to the previous configuration now (at "} {
		if got := NotConfirmed(client.ErrUnreachable, left).Error(); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", left, got, want)
		}
	}
	for code, again := range map[codes.Code]bool{codes.Unavailable: true, codes.DeadlineExceeded: true, codes.Unauthenticated: true, codes.FailedPrecondition: false, codes.PermissionDenied: false, codes.Unimplemented: false} {
		if got := isTemporaryOrUnauthorized(status.Error(code, "x")); got != again {
			t.Errorf("%v: another attempt: %v", code, got)
		}
	}
}
