package apid

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/relay"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
)

// TestEveryMethodAsEveryRole calls each method of the API over TLS with each role. A permitted call
// must reach the backend. Any other call must fail with PermissionDenied, and leave a line in the
// audit log.
func TestEveryMethodAsEveryRole(t *testing.T) {
	t.Parallel()
	b := newTestAPI(t)
	callers := []struct {
		name          string
		ca            *pki.CA
		organisations []string
		role          api.Role
	}{
		{"no role", b.operator, nil, api.Role_ROLE_UNSPECIFIED},
		{"unknown roles", b.operator, []string{"orlop:root", "system:masters", "ORLOP:ADMIN", "admin"}, api.Role_ROLE_UNSPECIFIED},
		{"machine", b.machine, []string{pki.RoleMachine}, api.Role_ROLE_MACHINE},
		{"machine, from an operator CA", b.operator, []string{pki.RoleMachine}, api.Role_ROLE_MACHINE},
		{"no role, from the machine CA", b.machine, nil, api.Role_ROLE_UNSPECIFIED},
		{"machine and admin, from the machine CA", b.machine, []string{pki.RoleMachine, pki.RoleAdmin}, api.Role_ROLE_MACHINE},
		{"reader", b.operator, []string{pki.RoleReader}, api.Role_ROLE_READER},
		{"operator", b.operator, []string{pki.RoleOperator}, api.Role_ROLE_OPERATOR},
		{"admin", b.operator, []string{pki.RoleAdmin}, api.Role_ROLE_ADMIN},
		{"reader and admin", b.operator, []string{pki.RoleReader, "else", pki.RoleAdmin}, api.Role_ROLE_ADMIN},
		{"log reader", b.clients, []string{pki.RoleLogReader}, api.Role_ROLE_LOG_READER},
		{"image importer", b.operator, []string{pki.RoleImageImport}, api.Role_ROLE_IMAGE_IMPORT},
		{"etcd backup", b.operator, []string{pki.RoleEtcdBackup}, api.Role_ROLE_ETCD_BACKUP},
		{"reader and image importer", b.clients, []string{pki.RoleImageImport, pki.RoleReader}, api.Role_ROLE_READER},
		{"join ticket", b.clients, []string{pki.RoleJoin}, api.Role_ROLE_JOIN},
		{"join ticket, from the machine CA", b.machine, []string{pki.RoleJoin}, api.Role_ROLE_UNSPECIFIED},
		{"log reader, from the machine CA", b.machine, []string{pki.RoleLogReader}, api.Role_ROLE_UNSPECIFIED},
	}
	for _, tc := range callers {
		c := b.dialWith(mustLeaf(t, tc.ca, pki.Spec{CN: "alice", O: tc.organisations, Usage: pki.Both, TTL: day}))
		for _, m := range apiMethods() {
			method := fullMethod(m)
			least := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
			// The test computes the expected result without the tested code.
			allowed := tc.role >= least && tc.role <= api.Role_ROLE_ADMIN
			switch tc.role {
			case api.Role_ROLE_MACHINE: // machined accepts control-plane machines only
				allowed = allowed || slices.Contains([]string{"/orlop.v1alpha1.Cluster/ReplicateMembership", "/orlop.v1alpha1.Cluster/Vote"}, method)
			case api.Role_ROLE_LOG_READER:
				allowed = slices.Contains([]string{"/orlop.v1alpha1.Machine/Version", "/orlop.v1alpha1.Machine/Events", "/orlop.v1alpha1.Machine/Relay",
					"/orlop.v1alpha1.Log/Service", "/orlop.v1alpha1.Log/Kernel", "/orlop.v1alpha1.Trust/Renew"}, method)
			case api.Role_ROLE_JOIN:
				allowed = method == "/orlop.v1alpha1.Cluster/Join"
			case api.Role_ROLE_IMAGE_IMPORT:
				allowed = slices.Contains([]string{"/orlop.v1alpha1.Machine/Version", "/orlop.v1alpha1.Machine/Relay", "/orlop.v1alpha1.Image/Import",
					"/orlop.v1alpha1.Image/List", "/orlop.v1alpha1.Trust/Renew"}, method)
			case api.Role_ROLE_ETCD_BACKUP:
				allowed = slices.Contains([]string{"/orlop.v1alpha1.Machine/Version", "/orlop.v1alpha1.Machine/Relay", "/orlop.v1alpha1.Etcd/Snapshot",
					"/orlop.v1alpha1.Etcd/ListSnapshots", "/orlop.v1alpha1.Etcd/Status", "/orlop.v1alpha1.Trust/Renew"}, method)
			}
			err := callRaw(t.Context(), c, method)
			md := b.backend.taken(method)
			switch {
			case allowed && (err != nil || md == nil):
				t.Errorf("%s as %s: got %v, reached the backend: %v; want no error, and a call of the backend", method, tc.name, err, md != nil)
			case !allowed && (status.Code(err) != codes.PermissionDenied || md != nil):
				t.Errorf("%s as %s: got %v, reached the backend: %v; want PermissionDenied, and no call of the backend", method, tc.name, err, md != nil)
			}
			if !allowed && (len(b.log.lines(t, "call refused", method)) == 0 || b.backend.taken(api.ApidInternal_RecordRefusal_FullMethodName) == nil) {
				t.Errorf("%s as %s: refused without an audit line", method, tc.name)
			}
		}
	}
}

// callRaw makes a call with an empty message, waits for the end of the call, and returns its error.
func callRaw(ctx context.Context, c *client.Client, method string) error {
	stream, err := c.Conn().NewStream(ctx, &relay.Bidirectional, method, grpc.ForceCodecV2(relay.NewCodec()))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(new(relay.Frame)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(new(relay.Frame)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestAMethodWithoutARoleIsRefusedToEveryone(t *testing.T) {
	table := roleTable{"/x/New": rule{}}
	for _, role := range []api.Role{api.Role_ROLE_UNSPECIFIED, api.Role_ROLE_READER, api.Role_ROLE_ADMIN} {
		if err := table.check("/x/New", role); err == nil {
			t.Errorf("role %v may call a method without a role", role)
		}
		if err := table.check("/x/Unknown", role); err == nil {
			t.Errorf("role %v may call an unknown method", role)
		}
	}
	b := newTestAPI(t)
	if err := callRaw(t.Context(), b.dial(pki.RoleAdmin), "/orlop.v1alpha1.Machine/Explode"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an unknown method: got %v", err)
	}
	if md := b.backend.taken("/orlop.v1alpha1.Machine/Explode"); md != nil {
		t.Error("an unknown method reached the backend")
	}
}

// TestHandshake connects with each kind of certificate that apid must reject. Nothing may reach the
// backend, not even a header.
func TestHandshake(t *testing.T) {
	b := newTestAPI(t)
	b.write(MachineCAsFile, nil)     // no machine is trusted
	foreign := mustCA(t, "operator") // a CA with the same name and another key
	good := mustLeaf(t, b.operator, pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day})
	server := mustLeaf(t, b.operator, pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Server, TTL: day})
	self, err := pki.SelfSigned(pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day})
	if err != nil {
		t.Fatal(err)
	}
	admin := pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day}
	past, future := admin, admin
	past.Now, future.Now = time.Now().Add(-2*day), time.Now().Add(2*day)
	cases := []struct {
		name string
		leaf *pki.Leaf
		says string
	}{
		{"no certificate", nil, "the client sent none"},
		{"foreign CA", mustLeaf(t, foreign, admin), "this machine does not trust the CA"},
		{"self-signed", self, "this machine does not trust the CA"},
		{"machine CA", mustLeaf(t, b.machine, admin), "this machine does not trust the CA"},
		{"expired", mustLeaf(t, b.operator, past), "has expired"},
		{"not yet valid", mustLeaf(t, b.operator, future), "not valid yet"},
		{"server certificate", server, "not a client certificate"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			conn, err := client.Dial(ctx, b.endpoint(c.leaf))
			if err == nil {
				_ = conn.Close()
				t.Fatal("the connection was accepted")
			}
			if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v; want ErrRefused and %q", err, c.says)
			}
		})
	}
	if n := len(b.backend.calls); n != 0 {
		t.Errorf("%d calls reached the backend", n)
	}
	eventually(t, "the log has a line for each refused handshake", func() bool {
		return len(b.log.lines(t, "handshake refused", "")) == len(cases)
	})
	if err := callRaw(t.Context(), b.dialWith(good), "/orlop.v1alpha1.Machine/Version"); err != nil {
		t.Errorf("the good certificate: %v", err)
	}
}

// TestOldTLS checks that apid accepts only TLS 1.3, and that a session ticket cannot resume a
// connection.
func TestOldTLS(t *testing.T) {
	b := newTestAPI(t)
	leaf := mustLeaf(t, b.operator, pki.Spec{CN: "alice", Usage: pki.Client, TTL: day})
	config := &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}},
	}
	if conn, err := tls.Dial("tcp", b.address, config); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
	config.MaxVersion = tls.VersionTLS13
	config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 2 {
		conn, err := tls.Dial("tcp", b.address, config)
		if err != nil {
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("the connection was resumed")
		}
		// The client reads a byte, because a session ticket would arrive with the first bytes of
		// the server.
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	}
}

// TestMetadata checks that machined gets the identity of the caller from apid, and that apid drops
// all metadata of the client.
func TestMetadata(t *testing.T) {
	b := newTestAPI(t)
	leaf := mustLeaf(t, b.operator, pki.Spec{CN: "Zoë\n", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: day})
	c := b.dialWith(leaf)
	ctx := metadata.AppendToOutgoingContext(t.Context(),
		api.MetadataRole, "admin", api.MetadataSubject, "root", api.MetadataPeer, "10.0.0.1:1", api.MetadataAge, "9999999999", "orlop-new", "x", "authorization", "Bearer x", "x-forwarded-for", "y")
	if err := callRaw(ctx, c, "/orlop.v1alpha1.Machine/Version"); err != nil {
		t.Fatal(err)
	}
	md := b.backend.taken("/orlop.v1alpha1.Machine/Version")
	want := map[string]string{api.MetadataRole: "reader", api.MetadataSubject: "CN=Zo??,O=orlop:reader", api.MetadataSerial: leaf.Cert.SerialNumber.Text(16),
		api.MetadataName: "Zo??", api.MetadataLineage: leaf.Cert.SerialNumber.Text(16), api.MetadataIssuer: pki.Fingerprint(b.operator.Cert)}
	for key, value := range want {
		if got := md.Get(key); len(got) != 1 || got[0] != value {
			t.Errorf("%s: got %q, want %q", key, got, value)
		}
	}
	if got := md.Get(api.MetadataPeer); len(got) != 1 || !strings.HasPrefix(got[0], "127.0.0.1:") {
		t.Errorf("%s: got %q", api.MetadataPeer, got)
	}
	if got := md.Get(api.MetadataAge); len(got) != 1 || strings.Trim(got[0], "0123456789") != "" || got[0] == "" || len(got[0]) > 6 {
		t.Errorf("%s: got %q, want the age of a young connection in milliseconds", api.MetadataAge, got)
	}
	for _, key := range []string{"orlop-new", "authorization", "x-forwarded-for"} {
		if got := md.Get(key); got != nil {
			t.Errorf("%s: %q reached the backend", key, got)
		}
	}
}

// TestPassesThrough checks the features of gRPC that a proxy could lose: messages in both
// directions at the same time, headers, trailers, the status with its details, and deadlines.
func TestPassesThrough(t *testing.T) {
	b := newTestAPI(t)
	detail := &api.Problem{File: "m.yaml", Line: 7, Reason: "unknown field"}
	b.backend.setAnswer(func(_ string, stream grpc.ServerStream) error {
		if _, ok := stream.Context().Deadline(); !ok {
			return errors.New("the deadline was lost")
		}
		if err := stream.SendHeader(metadata.Pairs("x-first", "1")); err != nil {
			return err
		}
		for range 3 {
			message := new(relay.Frame)
			if err := stream.RecvMsg(message); err != nil {
				return err
			}
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
		stream.SetTrailer(metadata.Pairs("x-last", "2"))
		s, err := status.New(codes.InvalidArgument, "refused").WithDetails(detail, &errdetails.Help{})
		if err != nil {
			return err
		}
		return s.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := b.dial(pki.RoleOperator).Conn().NewStream(ctx, &relay.Bidirectional, api.Image_Import_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	chunk := &api.ImportImageRequest{Chunk: bytes.Repeat([]byte("x"), 1<<20)}
	for range 3 {
		if err := stream.SendMsg(chunk); err != nil {
			t.Fatal(err)
		}
		got := new(api.ImportImageRequest)
		if err := stream.RecvMsg(got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, chunk) {
			t.Fatal("the echoed message differs from the sent message")
		}
	}
	err = stream.RecvMsg(new(api.ImportImageRequest))
	s := status.Convert(err)
	if s.Code() != codes.InvalidArgument || s.Message() != "refused" || len(s.Details()) != 2 || !proto.Equal(s.Details()[0].(proto.Message), detail) {
		t.Errorf("status: got %v with %v", s, s.Details())
	}
	header, err := stream.Header()
	if err != nil || len(header.Get("x-first")) != 1 {
		t.Errorf("header: got %v, %v", header, err)
	}
	if got := stream.Trailer().Get("x-last"); len(got) != 1 {
		t.Errorf("trailer: got %v", stream.Trailer())
	}
	lines := b.log.lines(t, "call", "/orlop.v1alpha1.Image/Import")
	if len(lines) != 1 || lines[0]["subject"] != "CN=alice,O=orlop:operator" || lines[0]["outcome"] != "InvalidArgument" || lines[0]["serial"] == "" || lines[0]["duration"] == "" {
		t.Errorf("audit: got %v", lines)
	}
}

func TestReadingLeavesNoAuditLine(t *testing.T) {
	b := newTestAPI(t)
	if err := callRaw(t.Context(), b.dial(pki.RoleAdmin), "/orlop.v1alpha1.Machine/Version"); err != nil {
		t.Fatal(err)
	}
	if got := b.log.lines(t, "call", ""); len(got) != 0 {
		t.Errorf("a call that only reads has the audit lines %v", got)
	}
}

func TestDisconnectReachesBackend(t *testing.T) {
	b := newTestAPI(t)
	ended := make(chan error, 1)
	b.backend.setAnswer(func(_ string, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		ended <- stream.Context().Err()
		return stream.Context().Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := b.dial(pki.RoleReader).Machine.Watch(ctx, &api.GetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the call arrives", func() bool { return b.backend.taken("/orlop.v1alpha1.Machine/Watch") != nil })
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the call of the backend has not ended, although the client has cancelled its call")
	}
}

func TestMessageLimit(t *testing.T) {
	b := newTestAPI(t)
	c := b.dial(pki.RoleAdmin)
	_, err := c.Config.Apply(t.Context(), &api.ApplyRequest{Documents: make([]byte, maxRequest+1)}, grpc.MaxCallSendMsgSize(2*maxRequest))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request that is larger than maxRequest: got %v, want ResourceExhausted", err)
	}
}

// TestHealthAndReflection checks that apid serves health and reflection to readers, and rejects a
// client without a role.
func TestHealthAndReflection(t *testing.T) {
	b := newTestAPI(t)
	for _, c := range []struct {
		organisation string
		code         codes.Code
	}{{"none", codes.PermissionDenied}, {pki.RoleReader, codes.OK}} {
		conn := b.dial(c.organisation).Conn()
		answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "orlop.v1alpha1.Machine"})
		if status.Code(err) != c.code || (err == nil && answer.Status != healthpb.HealthCheckResponse_SERVING) {
			t.Errorf("health as %s: got %v, %v", c.organisation, answer, err)
		}
		names, err := listServices(t.Context(), conn)
		if status.Code(err) != c.code || (err == nil && !strings.Contains(names, "orlop.v1alpha1.Image")) {
			t.Errorf("reflection as %s: got %q, %v", c.organisation, names, err)
		}
	}
}

func listServices(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return "", err
	}
	request := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	answer, err := stream.Recv()
	if err != nil {
		return "", err
	}
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	return strings.Join(names, " "), nil
}

// TestLongQuestion checks that apid rejects a reflection request with more than maxQuestion bytes.
func TestLongQuestion(t *testing.T) {
	b := newTestAPI(t)
	stream, err := reflectionpb.NewServerReflectionClient(b.dial(pki.RoleReader).Conn()).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := &reflectionpb.ServerReflectionRequest{Host: strings.Repeat("h", maxQuestion), MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want InvalidArgument", err)
	}
}

// TestHealthIsAuthorizedFirst checks that apid rejects a client without a role before it reads the
// client's message.
func TestHealthIsAuthorizedFirst(t *testing.T) {
	b := newTestAPI(t)
	conn := b.dial("none").Conn()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, healthpb.Health_Check_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	// The client sends no message.
	if err := stream.RecvMsg(new(healthpb.HealthCheckResponse)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v, want PermissionDenied", err)
	}
}

// TestCredentialsReload renews the server's certificate, and then writes an invalid file. apid
// continues with the last valid files.
func TestCredentialsReload(t *testing.T) {
	b := newTestAPI(t)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	renewed := mustLeaf(t, b.machine, pki.Spec{CN: "m1", IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Usage: pki.Server, TTL: day, Key: key})
	b.write(ServerKeyFile, renewed.KeyPEM()) // certificate and key do not match now
	b.dial(pki.RoleReader)
	b.write(ServerCertFile, renewed.CertPEM())
	pinned := b.endpoint(mustLeaf(t, b.operator, pki.Spec{CN: "alice", Usage: pki.Client, TTL: day}))
	pinned.CA, pinned.Fingerprint = nil, pki.Fingerprint(renewed.Cert)
	// Whether apid becomes unready between the two writes depends on timing, so the test waits for
	// the new certificate and not for the report of Ready.
	eventually(t, "the renewed certificate is in use", func() bool {
		c, err := client.Dial(t.Context(), pinned)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})

	b.write(OperatorCAsFile, []byte("garbage"))
	b.waitReady(false)
	b.dial(pki.RoleReader) // fails the test if it is rejected
}

// TestConnectionsPerAddress opens as many connections as an address may have. A further connection
// is rejected. After these connections are closed, a new connection is accepted.
func TestConnectionsPerAddress(t *testing.T) {
	b := newTestAPI(t)
	hangUp := portservertest.Connect(t, b.address, maxPerAddress)
	extra, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = extra.Close() }()
	if _, err := extra.Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the limit was served")
	}
	hangUp()
	eventually(t, "apid accepts a connection after the others are closed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, err := client.Dial(ctx, b.endpoint(mustLeaf(t, b.operator, pki.Spec{CN: "a", Usage: pki.Client, TTL: day})))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// TestJoinRequest checks that a machine without a ticket can send a join request if the
// configuration permits it, and gets an answer. The machine has no other access. Without the
// permission, apid rejects the machine like any client without a certificate.
func TestJoinRequest(t *testing.T) {
	b := newTestAPI(t)
	b.backend.setAnswer(func(method string, stream grpc.ServerStream) error {
		if method != api.ApidInternal_RequestJoin_FullMethodName {
			return status.Error(codes.Unimplemented, method)
		}
		r := new(api.RequestJoinRequest)
		if err := stream.RecvMsg(r); err != nil {
			return err
		}
		if r.Name != "w1" || string(r.Csr) != "key" || !strings.HasPrefix(r.Peer, "127.0.0.1:") {
			return stream.SendMsg(&api.RequestJoinResponse{State: string(joinrequest.Rejected), Reason: "wrong"})
		}
		return stream.SendMsg(&api.RequestJoinResponse{State: string(joinrequest.Approved), Certificate: []byte("ticket")})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	e := b.endpoint(nil)
	if _, err := client.RequestJoin(ctx, e, joinrequest.Request{Name: "w1", CSR: []byte("key")}); !errors.Is(err, client.ErrJoinRequestsDisabled) {
		t.Errorf("with join requests disabled: %v", err)
	}
	b.write(JoinRequestsFile, []byte("yes"))
	answer, err := client.RequestJoin(ctx, e, joinrequest.Request{Name: "w1", CSR: []byte("key")})
	if err != nil || answer.State != joinrequest.Approved || string(answer.Certificate) != "ticket" {
		t.Errorf("the join request of w1: %v, %v; want approval and a ticket", answer, err)
	}
	if answer, err = client.RequestJoin(ctx, e, joinrequest.Request{Name: "w2", CSR: []byte("key")}); err != nil || answer.State != joinrequest.Rejected {
		t.Errorf("the join request of w2: %v, %v; want a rejection", answer, err)
	}
	// Calls still need a certificate, also for a client that offers the protocol of join requests.
	if conn, err := client.Dial(ctx, e); err == nil {
		_ = conn.Close()
		t.Error("a connection without a certificate was accepted")
	} else if !errors.Is(err, client.ErrRefused) {
		t.Error(err)
	}
	if conn, err := tls.Dial("tcp", b.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", joinrequest.Protocol}}); err == nil {
		// A TLS 1.3 client gets the error about the missing certificate with its first read.
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("a client without a certificate that offers the protocols of calls and of join requests: read %d bytes, %v", n, err)
		}
		_ = conn.Close()
	}
	// The client sends no join request to a machine with a CA that it does not trust.
	stranger := e
	stranger.CA = x509.NewCertPool()
	stranger.CA.AddCert(mustCA(t, "stranger").Cert)
	if _, err := client.RequestJoin(ctx, stranger, joinrequest.Request{Name: "w1", CSR: []byte("key")}); !errors.Is(err, client.ErrUntrusted) {
		t.Errorf("a machine with an untrusted CA: got %v, want ErrUntrusted", err)
	}
	// An unclaimed machine accepts no join requests.
	b.write(OperatorCAsFile, nil)
	if _, err := client.RequestJoin(ctx, e, joinrequest.Request{Name: "w1", CSR: []byte("key")}); err == nil {
		t.Error("an unclaimed machine accepted a join request")
	}
}

// TestPairing checks that every connection to an unclaimed machine permits only pairing, and that
// pairing is impossible after the machine is claimed.
func TestPairing(t *testing.T) {
	b := newTestAPI(t)
	b.write(OperatorCAsFile, nil)
	code, asked := pairing.NewCode(), 0
	b.backend.setAnswer(func(method string, stream grpc.ServerStream) error {
		if method != api.ApidInternal_Pair_FullMethodName {
			return status.Error(codes.Unimplemented, method)
		}
		asked++
		r := new(api.PairRequest)
		if err := stream.RecvMsg(r); err != nil {
			return err
		}
		claim := pairing.Claim{CA: r.Ca, Proof: r.Proof}
		if !code.Accepts(r.ChannelBinding, claim) || !strings.HasPrefix(r.Peer, "127.0.0.1:") {
			return stream.SendMsg(&api.PairResponse{Refusal: "wrong code"})
		}
		b.write(OperatorCAsFile, r.Ca)
		return stream.SendMsg(&api.PairResponse{Proof: code.NewAnswer(r.ChannelBinding, claim).Proof})
	})
	admin := pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: day}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, c := range []struct {
		name string
		leaf *pki.Leaf
		says string
	}{
		{"no certificate", nil, "the client sent none"},
		{"the operator, before pairing", mustLeaf(t, b.operator, admin), "orlopctl pair"},
		{"a machine of the cluster", mustLeaf(t, b.machine, pki.Spec{CN: "m2", O: []string{pki.RoleMachine}, Usage: pki.Both, TTL: day}), "orlopctl pair"},
	} {
		if conn, err := client.Dial(ctx, b.endpoint(c.leaf)); err == nil {
			_ = conn.Close()
			t.Errorf("%s: the connection was accepted", c.name)
		} else if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// If a client offers the protocols of calls and of pairing, apid selects pairing.
	conn, err := tls.Dial("tcp", b.address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", pairing.Protocol}})
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != pairing.Protocol {
		t.Errorf("a connection that offers both protocols has the protocol %q", got)
	}
	conn.Close()
	if _, err := client.Pair(ctx, b.address, b.operator.CertPEM(), pairing.NewCode()); err == nil || !strings.Contains(err.Error(), "wrong code") {
		t.Errorf("pairing with a wrong code: %v", err)
	}
	print, err := client.Pair(ctx, b.address, b.operator.CertPEM(), code)
	if err != nil || asked != 2 {
		t.Fatalf("%v; machined got %d pairing requests, want 2", err, asked)
	}
	b.backend.setAnswer(nil)
	pinned := b.endpoint(mustLeaf(t, b.operator, admin))
	pinned.CA, pinned.Fingerprint = nil, print
	c, err := client.Dial(ctx, pinned)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := callRaw(ctx, c, api.Machine_Version_FullMethodName); err != nil {
		t.Error(err)
	}
	if err := callRaw(ctx, c, api.ApidInternal_Pair_FullMethodName); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an internal method, called by an admin: %v", err)
	}
	if _, err := client.Pair(ctx, b.address, b.operator.CertPEM(), code); !errors.Is(err, client.ErrClaimed) {
		t.Errorf("a second pairing: got %v, want ErrClaimed", err)
	}
}

// TestRenewalGoesWithItsCA checks that a client certificate that a machine has renewed is valid
// only while apid trusts the CA of the original certificate.
func TestRenewalGoesWithItsCA(t *testing.T) {
	b := newTestAPI(t)
	renewed := func(root string) *pki.Leaf {
		return mustLeaf(t, b.clients, pki.Spec{CN: "dora", O: []string{pki.RoleReader}, Usage: pki.Client, TTL: day, Lineage: "1f", Root: root})
	}
	leaf := renewed(pki.Fingerprint(b.operator.Cert))
	c := b.dialWith(leaf)
	if err := callRaw(t.Context(), c, api.Machine_Version_FullMethodName); err != nil {
		t.Fatal(err)
	}
	if md := b.backend.taken(api.Machine_Version_FullMethodName); md.Get(api.MetadataLineage)[0] != "1f" || md.Get(api.MetadataIssuer)[0] != pki.Fingerprint(b.operator.Cert) {
		t.Errorf("machined got the metadata %v; want the lineage 1f, and the operator CA as the issuer", md)
	}
	for _, root := range []string{pki.Fingerprint(b.machine.Cert), "sha256:", "sha256:" + strings.Repeat("0", 64)} {
		if c, err := client.Dial(t.Context(), b.endpoint(renewed(root))); !errors.Is(err, client.ErrRefused) {
			t.Errorf("renewed from a certificate of the CA %s: %v", root, err)
			_ = c.Close()
		}
	}
	b.write(OperatorCAsFile, mustCA(t, "next").CertPEM())
	eventually(t, "the CA of the original certificate is removed, and calls fail", func() bool {
		return status.Code(callRaw(t.Context(), c, api.Machine_Version_FullMethodName)) == codes.Unauthenticated
	})
}

// TestInventory checks that a machine without a configuration can send its inventory if the called
// machine permits it. The sender has no other access. machined gets the signature and the channel
// binding of the connection.
func TestInventory(t *testing.T) {
	b := newTestAPI(t)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b.backend.setAnswer(func(method string, stream grpc.ServerStream) error {
		if method != api.ApidInternal_ReportInventory_FullMethodName {
			return status.Error(codes.Unimplemented, method)
		}
		r := new(api.ReportInventoryRequest)
		if err := stream.RecvMsg(r); err != nil {
			return err
		}
		public, h, err := inventory.Request{Key: r.Key, Inventory: r.Inventory, Signature: r.Signature}.Verify(r.ChannelBinding)
		if err != nil || !public.Equal(&key.PublicKey) || h.Serial != "SN-1" || !strings.HasPrefix(r.Peer, "127.0.0.1:") {
			return stream.SendMsg(&api.ReportInventoryResponse{Reason: fmt.Sprintf("%v: %+v from %s", err, h, r.Peer)})
		}
		return stream.SendMsg(&api.ReportInventoryResponse{Listed: true})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	host := inventory.Host{Serial: "SN-1"}
	if _, err := client.ReportInventory(ctx, b.address, key, host); !errors.Is(err, client.ErrInventoryDisabled) {
		t.Errorf("with inventories disabled: %v", err)
	}
	b.write(InventoryFile, []byte("yes"))
	if answer, err := client.ReportInventory(ctx, b.address, key, host); err != nil || !answer.Listed {
		t.Errorf("with inventories enabled: %+v, %v; want a listed machine", answer, err)
	}
	if conn, err := client.Dial(ctx, b.endpoint(nil)); err == nil {
		_ = conn.Close()
		t.Error("a call without a certificate was accepted")
	}
	if _, err := client.RequestJoin(ctx, b.endpoint(nil), joinrequest.Request{Name: "w1"}); !errors.Is(err, client.ErrJoinRequestsDisabled) {
		t.Errorf("a join request: got %v, want ErrJoinRequestsDisabled", err)
	}
	// An unclaimed machine accepts no inventories.
	b.write(OperatorCAsFile, nil)
	if _, err := client.ReportInventory(ctx, b.address, key, host); err == nil {
		t.Error("an unclaimed machine accepted an inventory")
	}
}
