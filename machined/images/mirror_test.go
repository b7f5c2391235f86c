package images

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/client/clienttest"
	"github.com/orlop-os/orlop/pkg/limits"
)

// shelf is the image service of another machine. The field names has the contents of its images by
// name.
type shelf struct {
	api.UnimplementedImageServer
	names map[string]string
	fails bool
	asked atomic.Int32
}

func (s *shelf) Resolve(_ context.Context, r *api.ResolveImageRequest) (*api.ResolveImageResponse, error) {
	s.asked.Add(1)
	if s.fails {
		return nil, status.Error(codes.Unavailable, "containerd does not run")
	}
	for name, content := range s.names {
		if sum := digest.FromString(content).String(); r.Name == name || r.Name == sum {
			return &api.ResolveImageResponse{Digest: sum, MediaType: "application/vnd.test", Size: int64(len(content))}, nil
		}
	}
	return &api.ResolveImageResponse{}, nil
}

func (s *shelf) ReadBlob(r *api.ReadBlobRequest, stream grpc.ServerStreamingServer[api.ReadBlobResponse]) error {
	for _, content := range s.names {
		if digest.FromString(content).String() == r.Digest {
			half := len(content) / 2
			return errors.Join(stream.Send(&api.ReadBlobResponse{Chunk: []byte(content[:half])}), stream.Send(&api.ReadBlobResponse{Chunk: []byte(content[half:])}))
		}
	}
	return status.Error(codes.NotFound, r.Digest)
}

// imports are the images imported on this machine: contents by name.
type imports map[string]string

func (i imports) Find(_ context.Context, name string) (ocispec.Descriptor, error) {
	for own, content := range i {
		if sum := digest.FromString(content); name == own || name == sum.String() {
			return ocispec.Descriptor{Digest: sum, Size: int64(len(content))}, nil
		}
	}
	return ocispec.Descriptor{}, fs.ErrNotExist
}

func (i imports) Open(_ context.Context, sum string) (io.ReadCloser, error) {
	for _, content := range i {
		if digest.FromString(content).String() == sum {
			return io.NopCloser(strings.NewReader(content)), nil
		}
	}
	return nil, fs.ErrNotExist
}

// TestPeerImages checks that images of another control-plane machine and of this machine are found
// and read. A machine that does not answer is skipped for some time.
func TestPeerImages(t *testing.T) {
	second, third := netip.MustParseAddr("10.0.0.12"), netip.MustParseAddr("10.0.0.13")
	wire := clienttest.NewWire(t)
	var events []string
	deps := &Deps{
		Peers: func() []netip.Addr { return []netip.Addr{second, third} },
		Dial:  wire.Dial,
		Call: func(ctx context.Context, addr netip.Addr, do func(*client.Client) error) error {
			c, err := wire.Dial(ctx, addr)
			if err != nil {
				return err
			}
			return errors.Join(do(c), c.Close())
		},
		Event: func(_, _, message string) { events = append(events, message) },
	}
	none, some := &shelf{}, &shelf{names: map[string]string{"example.com/web:1": "a manifest"}}
	wire.Serve(t, second, func(s *grpc.Server) { api.RegisterImageServer(s, none) })
	wire.Serve(t, third, func(s *grpc.Server) { api.RegisterImageServer(s, some) })

	n := &peerImages{deps: deps, own: imports{"example.com/own:1": "of this machine"}, retryAt: map[netip.Addr]time.Time{}}
	sum := digest.FromString("a manifest")
	for _, name := range []string{"example.com/web:1", sum.String()} {
		if found, err := n.Find(t.Context(), name); err != nil || found.Digest != sum || found.Size != 10 || found.MediaType != "application/vnd.test" {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	blob, err := n.Open(t.Context(), sum.String())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(blob)
	if err := errors.Join(err, blob.Close()); err != nil || string(text) != "a manifest" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := n.Find(t.Context(), "example.com/web:2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an image that no machine has: %v", err)
	}
	if _, err := n.Open(t.Context(), "sha256:none"); err == nil || !strings.Contains(err.Error(), "10.0.0.13") {
		t.Errorf("a blob that no machine has: %v", err)
	}
	if len(events) != 1 || !strings.Contains(events[0], "example.com/web:1 is "+sum.String()+" at 10.0.0.13") {
		t.Errorf("events %q", events)
	}

	ours := digest.FromString("of this machine")
	if found, err := n.Find(t.Context(), "example.com/own:1"); err != nil || found.Digest != ours {
		t.Errorf("an image of this machine: %+v, %v", found, err)
	}
	if blob, err = n.Open(t.Context(), ours.String()); err != nil {
		t.Errorf("an image of this machine: %v", err)
	} else if text, err := io.ReadAll(blob); err != nil || string(text) != "of this machine" {
		t.Errorf("an image of this machine: %q, %v", text, err)
	}

	none.fails = true
	before := none.asked.Load()
	for range 3 {
		if found, err := n.Find(t.Context(), sum.String()); err != nil || found.Digest != sum {
			t.Errorf("%+v, %v", found, err)
		}
	}
	if asked := none.asked.Load() - before; asked != 1 {
		t.Errorf("a machine that does not answer was asked %d times", asked)
	}
}

// serving is the image service of a machine that serves the files of extensions.
type serving struct {
	api.UnimplementedImageServer
	m *Manager
}

func (s serving) ReadBlob(r *api.ReadBlobRequest, stream grpc.ServerStreamingServer[api.ReadBlobResponse]) error {
	return s.m.SendBlob(stream.Context(), r.Digest, "peer", func(piece []byte) error { return stream.Send(&api.ReadBlobResponse{Chunk: piece}) })
}

// TestExtensionBlobs checks that a machine reads a file of an extension from another machine.
func TestExtensionBlobs(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.12")
	content := strings.Repeat("an image ", 1<<18) // several pieces
	sum := digest.FromString(content)
	server := &Manager{blobReads: limits.NewLimiter(maxBlobReads, maxBlobReadsPerMachine), deps: Deps{
		Stopping: t.Context(),
		Serve:    func(ctx context.Context, send func(context.Context, func()) error) error { return send(ctx, func() {}) },
		Extension: func(sha256 string) (io.ReadCloser, error) {
			if sha256 != sum.Encoded() {
				return nil, fs.ErrNotExist
			}
			return io.NopCloser(strings.NewReader(content)), nil
		},
	}}
	wire := clienttest.NewWire(t)
	wire.Serve(t, peer, func(s *grpc.Server) { api.RegisterImageServer(s, serving{m: server}) })
	deps := &Deps{Peers: func() []netip.Addr { return []netip.Addr{peer} }, Dial: wire.Dial}
	from := blobsOfPeers{&peerImages{deps: deps, own: imports{}, retryAt: map[netip.Addr]time.Time{}}}
	blob, err := from.Open(t.Context(), artifact.Blob{SHA256: sum.Encoded(), Size: int64(len(content))})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(blob); errors.Join(err, blob.Close()) != nil || string(got) != content {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
