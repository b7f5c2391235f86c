package apid

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/relay"
	"github.com/orlop-os/orlop/pkg/service/portserver/portservertest"
)

const day = 24 * time.Hour

// testAPI is an apid with a real TLS listener, in front of a backend that records calls.
type testAPI struct {
	t        *testing.T
	dir      string
	operator *pki.CA // trusted CA of operators; its certificates can have every role
	clients  *pki.CA // another trusted CA; its certificates can have every role, too
	// signs the server's certificate, and the certificates of the other machines of the cluster
	machine *pki.CA
	address string
	backend *recorder
	log     *logBuffer
	ready   chan bool
}

// newTestAPI starts apid and its backend, which end with the test.
func newTestAPI(t *testing.T) *testAPI {
	t.Helper()
	b := &testAPI{t: t, dir: t.TempDir(), operator: mustCA(t, "operator"), clients: mustCA(t, "clients"), machine: mustCA(t, "machines"),
		backend: newRecorder(), log: &logBuffer{}, ready: make(chan bool, 100)}
	server, err := b.machine.Issue(pki.Spec{CN: "m1", DNS: []string{"m1"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Usage: pki.Server, TTL: day})
	if err != nil {
		t.Fatal(err)
	}
	b.write(ServerCertFile, server.CertPEM())
	b.write(ServerKeyFile, server.KeyPEM())
	b.write(OperatorCAsFile, b.operator.CertPEM())
	b.write(ClientCAsFile, b.clients.CertPEM())
	b.write(MachineCAsFile, b.machine.CertPEM())
	b.write(RevokedFile, nil)
	b.write(JoinRequestsFile, nil)
	b.write(InventoryFile, nil)

	// The path of a Unix socket has at most 108 bytes, and the directory of a test may be longer.
	short, err := os.MkdirTemp("", "apid")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "machined.sock")
	b.backend.serve(t, socket)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, Options{Listener: listener, Dir: b.dir, Backend: socket, Log: b.log,
			Ready: func(ok bool, _ string) { b.ready <- ok }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	b.waitReady(true)
	return b
}

// write replaces a file by rename, like machined.
func (b *testAPI) write(name string, content []byte) {
	b.t.Helper()
	temporary := filepath.Join(b.dir, "."+name)
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(b.dir, name)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testAPI) waitReady(want bool) {
	b.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-b.ready:
			if got == want {
				return
			}
		case <-deadline:
			b.t.Fatalf("apid did not become ready=%v; its log:\n%s", want, b.log)
		}
	}
}

// endpoint returns the address and CA of apid, and leaf as the certificate of the client. With nil,
// the client has no certificate.
func (b *testAPI) endpoint(leaf *pki.Leaf) client.Endpoint {
	roots := x509.NewCertPool()
	roots.AddCert(b.machine.Cert)
	e := client.Endpoint{Address: b.address, CA: roots}
	if leaf != nil {
		e.Cert = tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
	}
	return e
}

// dial connects with a new certificate for the given organizations, issued by the trusted CA
// operator.
func (b *testAPI) dial(organisations ...string) *client.Client {
	b.t.Helper()
	return b.dialWith(mustLeaf(b.t, b.operator, pki.Spec{CN: "alice", O: organisations, Usage: pki.Client, TTL: day}))
}

func (b *testAPI) dialWith(leaf *pki.Leaf) *client.Client {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, b.endpoint(leaf))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

func mustCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name, 365*day)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func mustLeaf(t *testing.T, ca *pki.CA, spec pki.Spec) *pki.Leaf {
	t.Helper()
	leaf, err := ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// recorder replaces machined: it records every call, and answers each message with the same
// message.
type recorder struct {
	mu     sync.Mutex
	calls  map[string]metadata.MD
	answer func(method string, stream grpc.ServerStream) error // nil: echo
}

func newRecorder() *recorder { return &recorder{calls: map[string]metadata.MD{}} }

func (r *recorder) serve(t *testing.T, socket string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(relay.NewCodec()), grpc.UnknownServiceHandler(r.handle))
	go func() {
		if err := server.Serve(listener); err != nil {
			t.Errorf("recorder: %v", err)
		}
	}()
	t.Cleanup(server.Stop)
}

func (r *recorder) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	md, _ := metadata.FromIncomingContext(stream.Context())
	r.mu.Lock()
	r.calls[method] = md
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		return answer(method, stream)
	}
	for {
		message := new(relay.Frame)
		err := stream.RecvMsg(message)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.SendMsg(message); err != nil {
			return err
		}
	}
}

// taken returns and removes the metadata of the last call of a method. It returns nil if the
// recorder has no call of the method.
func (r *recorder) taken(method string) metadata.MD {
	r.mu.Lock()
	defer r.mu.Unlock()
	md := r.calls[method]
	delete(r.calls, method)
	return md
}

func (r *recorder) setAnswer(answer func(string, grpc.ServerStream) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// logBuffer collects the log of apid.
type logBuffer struct{ portservertest.Log }

// lines returns the log lines with a message, for a method; an empty method selects all methods.
func (l *logBuffer) lines(t *testing.T, msg, method string) []map[string]any {
	t.Helper()
	var found []map[string]any
	for text := range strings.Lines(l.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("a line of the log is not JSON: %q", text)
		}
		if line["msg"] == msg && (method == "" || line["method"] == method) {
			found = append(found, line)
		}
	}
	return found
}

// eventually waits until holds returns true, and fails the test after 10 seconds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not true within the deadline: %s", what)
		}
	}
}
