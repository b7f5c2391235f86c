package apid

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// TestRevocation replaces the CAs of the operators. On an existing connection, the active call
// ends, new calls fail, and the connection is closed.
func TestRevocation(t *testing.T) {
	t.Parallel()
	b := newTestAPI(t)
	b.backend.setAnswer(func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	c := b.dial(pki.RoleAdmin)
	stream, err := c.Machine.Watch(t.Context(), &api.GetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the call arrives", func() bool { return b.backend.taken("/orlop.v1alpha1.Machine/Watch") != nil })
	next := mustCA(t, "next")
	b.write(OperatorCAsFile, next.CertPEM())
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "no longer trusted") {
		t.Errorf("the active call: got %v", err)
	}
	if _, err := c.Machine.Version(t.Context(), &api.VersionRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a new call on the old connection: got %v", err)
	}
	eventually(t, "the connection, which has no active call, is closed", func() bool { return !c.Connected() })
	b.backend.setAnswer(nil)
	leaf := mustLeaf(t, next, pki.Spec{CN: "bob", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: day})
	if err := callRaw(t.Context(), b.dialWith(leaf), "/orlop.v1alpha1.Machine/Version"); err != nil {
		t.Errorf("the new operator: %v", err)
	}
}

// TestRevokedCertificate revokes one of two certificates. Its active calls end, new calls on its
// connections fail, and new connections are rejected. After the revocation is undone, the
// certificate is valid again.
func TestRevokedCertificate(t *testing.T) {
	t.Parallel()
	b := newTestAPI(t)
	b.backend.setAnswer(func(method string, stream grpc.ServerStream) error {
		if method == api.Machine_Version_FullMethodName {
			return stream.SendMsg(&api.VersionResponse{})
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	// The certificates come from different CAs.
	dora := mustLeaf(t, b.clients, pki.Spec{CN: "dora", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day})
	emil := mustLeaf(t, b.operator, pki.Spec{CN: "emil", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day})
	version := func(c *client.Client) error {
		_, err := c.Machine.Version(t.Context(), &api.VersionRequest{})
		return err
	}
	for _, leaf := range []*pki.Leaf{dora, emil} {
		c, other := b.dialWith(leaf), b.dialWith(map[*pki.Leaf]*pki.Leaf{dora: emil, emil: dora}[leaf])
		stream, err := c.Machine.Watch(t.Context(), &api.GetRequest{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the call arrives", func() bool { return b.backend.taken(api.Machine_Watch_FullMethodName) != nil })
		name := leaf.Cert.Subject.CommonName
		b.write(RevokedFile, fmt.Appendf(nil, `[{"name":%q,"at":"2026-05-01T12:00:00Z","by":"CN=admin"}]`, name))
		if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked at 2026-05-01T12:00:00Z (name "+name+")") {
			t.Errorf("the active call of %s: %v", name, err)
		}
		if err := version(c); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("%s, on the old connection: %v", name, err)
		}
		if c, err := client.Dial(t.Context(), b.endpoint(leaf)); !errors.Is(err, client.ErrRefused) {
			t.Errorf("%s, on a new connection: %v", name, err)
			_ = c.Close()
		}
		if err := version(other); err != nil {
			t.Errorf("another certificate: %v", err)
		}
		b.write(RevokedFile, []byte("[]"))
		if err := version(b.dialWith(leaf)); err != nil {
			t.Errorf("%s, after the revocation was undone: %v", name, err)
		}
	}
	b.write(RevokedFile, []byte(`[{"name":"dora"`))
	b.waitReady(false) // the last valid files stay in use
}

// TestRevocationsLost checks the error that a worker gets while the list of revocations is lost. It
// must not say that the worker is revoked, because a revoked worker stops its pods.
func TestRevocationsLost(t *testing.T) {
	b := newTestAPI(t)
	b.write(RevokedFile, fmt.Appendf(nil, `[{"origin":%q}]`, trust.AnyTicket))
	worker := mustLeaf(t, b.clients, pki.Spec{CN: "w1", O: []string{pki.RoleMachine}, Usage: pki.Client, TTL: day, Ticket: "0a1b2c"})
	c, err := client.Dial(t.Context(), b.endpoint(worker))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Machine.Version(t.Context(), &api.VersionRequest{})
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), trust.ErrRevocationsLost.Error()) || strings.Contains(err.Error(), trust.RevokedPrefix) {
		t.Errorf("got %v, want ErrRevocationsLost, without the text of a revocation", err)
	}
}

// TestExpiryEndsCalls checks that an active call ends when the certificate of its caller expires.
func TestExpiryEndsCalls(t *testing.T) {
	t.Parallel()
	b := newTestAPI(t)
	b.backend.setAnswer(func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	leaf := mustLeaf(t, b.operator, pki.Spec{CN: "brief", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: 5 * time.Second})
	stream, err := b.dialWith(leaf).Machine.Watch(t.Context(), &api.GetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("got %v, want Unauthenticated and the time of the expiry", err)
	}
}

// TestClockEndsCalls checks that an active call ends when the clock is set past the expiry of the
// certificate.
func TestClockEndsCalls(t *testing.T) {
	b := newTestAPI(t)
	leaf := mustLeaf(t, b.operator, pki.Spec{CN: "a", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: day})
	store := newStore(b.dir)
	held, _, release, err := store.registerCall(t.Context(), []*x509.Certificate{leaf.Cert, b.operator.Cert})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	store.endExpired(time.Now())
	if held.Err() != nil {
		t.Errorf("the call ended before its certificate expired: %v", context.Cause(held))
	}
	store.endExpired(leaf.Cert.NotAfter)
	if cause := context.Cause(held); cause == nil || !strings.Contains(cause.Error(), "expired at") {
		t.Errorf("after the expiry, the call has the cause %v, want the time of the expiry", cause)
	}
}
