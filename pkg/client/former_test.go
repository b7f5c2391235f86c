package client_test

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/client/clienttest"
)

// release answers calls as apid of one version does: it serves the methods in known, and rejects
// all other methods.
type release struct {
	mu    sync.Mutex
	known map[string]bool
	code  codes.Code // of the rejections
	text  string
	calls []string
}

func (r *release) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, method)
	if !r.known[method] {
		return status.Error(r.code, method+": cannot call: "+r.text)
	}
	for {
		chunk := new(api.UploadBundleRequest)
		if err := stream.RecvMsg(chunk); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	if err := stream.SendMsg(&api.DownloadBundleResponse{Chunk: []byte("a")}); err != nil || method != "/orlop.v1alpha1.Upgrade/Give" {
		return err
	}
	return stream.SendMsg(&api.DownloadBundleResponse{Chunk: []byte("b")})
}

// taken returns the methods that were called since the previous call of taken.
func (r *release) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func dialRelease(t *testing.T, r *release) *client.Client {
	t.Helper()
	wire, addr := clienttest.NewWire(t), netip.MustParseAddr("192.0.2.1")
	wire.Serve(t, addr, func(*grpc.Server) {}, grpc.UnknownServiceHandler(r.handle))
	c, err := wire.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestFormerRelease checks that the client repeats a rejected call of a renamed method with the
// former name of the method, as on a machine with version 0.1.0. It does not repeat a call of a
// method that was never renamed.
func TestFormerRelease(t *testing.T) {
	const service = "/orlop.v1alpha1.Upgrade/"
	// code and text are those of version 0.1.0
	r := &release{known: map[string]bool{service + "Describe": true, service + "Give": true, service + "Offer": true, service + "Send": true}, code: codes.PermissionDenied,
		text: "this machine knows no such method; compare its version with that of your tool"}
	expect := func(want ...string) {
		t.Helper()
		if got := r.taken(); !slices.Equal(got, want) {
			t.Errorf("called %q, want %q", got, want)
		}
	}
	download := func(c *client.Client) (text string, err error) {
		stream, err := c.Upgrade.Download(t.Context(), &api.DownloadBundleRequest{})
		for err == nil {
			var part *api.DownloadBundleResponse
			if part, err = stream.Recv(); err == nil {
				text += string(part.Chunk)
			}
		}
		return text, err
	}
	c := dialRelease(t, r)
	for range 2 { // the client does not remember from a stream which names the machine knows
		if text, err := download(c); text != "ab" || err != io.EOF {
			t.Errorf("%q, %v", text, err)
		}
		expect(service+"Download", service+"Give")
	}
	upload := func() error {
		stream, err := c.Upgrade.Upload(t.Context())
		if err == nil {
			_ = stream.Send(&api.UploadBundleRequest{Chunk: []byte("c")})
			_, err = stream.CloseAndRecv()
		}
		return err
	}
	if err := upload(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an upload without BeginUpload: %v", err)
	}
	expect(service + "Upload")
	for _, calls := range [][]string{{service + "BeginUpload", service + "Offer"}, {service + "Offer"}} {
		if _, err := c.Upgrade.BeginUpload(t.Context(), &api.BeginUploadRequest{}); err != nil {
			t.Error(err)
		}
		expect(calls...)
	}
	if err := upload(); err != nil {
		t.Error(err)
	}
	expect(service + "Send")
	// The machine reboots with the present version, which no longer serves former names.
	r.mu.Lock()
	r.known = map[string]bool{service + "BeginUpload": true}
	r.mu.Unlock()
	for _, calls := range [][]string{{service + "Offer", service + "BeginUpload"}, {service + "BeginUpload"}} {
		if _, err := c.Upgrade.BeginUpload(t.Context(), &api.BeginUploadRequest{}); err != nil {
			t.Error(err)
		}
		expect(calls...)
	}
	if _, err := c.Machine.Version(t.Context(), &api.VersionRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method that was never renamed: %v", err)
	}
	expect("/orlop.v1alpha1.Machine/Version")
	if _, err := download(c); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a method that the machine knows by no name: %v", err)
	}
	expect(service+"Download", service+"Give")
}

// TestRejectionIsFinal checks that a rejection with another code or text leads to no call with a
// former name.
func TestRejectionIsFinal(t *testing.T) {
	for _, r := range []*release{
		{code: codes.PermissionDenied, text: "it needs the role orlop:admin, your certificate has orlop:reader"},
		{code: codes.Unauthenticated, text: api.UnknownMethod},
		{code: codes.Unavailable, text: api.UnknownMethod},
	} {
		c := dialRelease(t, r)
		if _, err := c.Upgrade.DescribeBundle(t.Context(), &api.DescribeBundleRequest{}); status.Code(err) != r.code {
			t.Error(err)
		}
		stream, err := c.Upgrade.Download(context.Background(), &api.DownloadBundleRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != r.code {
			t.Error(err)
		}
		if got := r.taken(); !slices.Equal(got, []string{"/orlop.v1alpha1.Upgrade/DescribeBundle", "/orlop.v1alpha1.Upgrade/Download"}) {
			t.Errorf("%s: called %q", r.code, got)
		}
	}
}
