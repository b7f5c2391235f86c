package imagestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	streamapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/paths"
)

// daemon is a fake of the parts of containerd that this package calls. An import creates the images
// in the field next.
type daemon struct {
	imagesapi.UnimplementedImagesServer
	streamapi.UnimplementedStreamingServer
	transferapi.UnimplementedTransferServer

	mu     sync.Mutex
	images map[string]*imagesapi.Image
	// fetched has the images in signatureNamespace, the containerd namespace for fetched
	// signatures.
	fetched map[string]*imagesapi.Image
	blobs   map[string][]byte            // by digest
	labels  map[string]map[string]string // of blobs
	disk    *disk
	next    map[string]string // digests by name
	pulled  map[string]string // images that pods pull during an import, digests by name
	remote  map[string]string // images of a registry, digests by name
	writes  int64             // number of record writes
	listed  func()            // called after a list of images was answered, with mu held
}

// started returns a fake daemon and a store connected to it.
func started(t *testing.T) (*daemon, *Store) {
	t.Helper()
	d := &daemon{images: map[string]*imagesapi.Image{}, fetched: map[string]*imagesapi.Image{}, blobs: map[string][]byte{}, labels: map[string]map[string]string{}, disk: &disk{snapshots: map[string]string{}}}
	pipe := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	imagesapi.RegisterImagesServer(server, d)
	contentapi.RegisterContentServer(server, contents{d: d})
	streamapi.RegisterStreamingServer(server, d)
	transferapi.RegisterTransferServer(server, d)
	snapshotsapi.RegisterSnapshotsServer(server, snapshots{d: d})
	diffapi.RegisterDiffServer(server, diffs{d: d})
	leasesapi.RegisterLeasesServer(server, leases{d: d})
	d.put(smallConfig)
	d.put("packed small")
	go server.Serve(pipe)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:containerd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return d, New(conn)
}

// put adds a blob and returns its digest.
func (d *daemon) put(content string) string {
	sum := digest.FromString(content).String()
	d.blobs[sum] = []byte(content)
	return sum
}

func (d *daemon) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.images))
}

func namespaced(ctx context.Context) error {
	if got := namespaceOf(ctx); got != Namespace && got != signatureNamespace {
		return status.Errorf(codes.FailedPrecondition, "namespace %q", got)
	}
	return nil
}

// namespaceOf returns the namespace of a call. containerd requires exactly one; several are joined
// by commas.
func namespaceOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("containerd-namespace"), ", ")
}

// The method in returns the images of the namespace of a call.
func (d *daemon) in(ctx context.Context) map[string]*imagesapi.Image {
	if namespaceOf(ctx) == signatureNamespace {
		return d.fetched
	}
	return d.images
}

func (d *daemon) List(ctx context.Context, _ *imagesapi.ListImagesRequest) (*imagesapi.ListImagesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Collect(maps.Values(d.in(ctx)))
	if d.listed != nil {
		d.listed()
	}
	return &imagesapi.ListImagesResponse{Images: all}, namespaced(ctx)
}

func (d *daemon) Get(ctx context.Context, r *imagesapi.GetImageRequest) (*imagesapi.GetImageResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.in(ctx)[r.Name]
	if i == nil {
		return nil, status.Error(codes.NotFound, r.Name)
	}
	return &imagesapi.GetImageResponse{Image: i}, namespaced(ctx)
}

func (d *daemon) Create(ctx context.Context, r *imagesapi.CreateImageRequest) (*imagesapi.CreateImageResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in(ctx)[r.Image.Name] != nil {
		return nil, status.Error(codes.AlreadyExists, r.Image.Name)
	}
	d.in(ctx)[r.Image.Name] = r.Image
	return &imagesapi.CreateImageResponse{Image: r.Image}, namespaced(ctx)
}

func (d *daemon) Update(ctx context.Context, r *imagesapi.UpdateImageRequest) (*imagesapi.UpdateImageResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.in(ctx)[r.Image.Name]
	if old == nil {
		return nil, status.Error(codes.NotFound, r.Image.Name)
	}
	if got := r.UpdateMask.GetPaths(); !slices.Equal(got, []string{"target", "labels"}) {
		return nil, status.Errorf(codes.InvalidArgument, "fields %q", got)
	}
	old.Target, old.Labels = r.Image.Target, r.Image.Labels
	return &imagesapi.UpdateImageResponse{Image: old}, namespaced(ctx)
}

func (d *daemon) Delete(ctx context.Context, r *imagesapi.DeleteImageRequest) (*emptypb.Empty, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := d.in(ctx)[r.Name]; i == nil || i.Target.Digest != r.Target.GetDigest() {
		return nil, status.Error(codes.NotFound, r.Name)
	}
	delete(d.in(ctx), r.Name)
	return &emptypb.Empty{}, namespaced(ctx)
}

// contents is the daemon's content store.
type contents struct {
	contentapi.UnimplementedContentServer
	d *daemon
}

// Read sends a blob in pieces.
func (c contents) Read(r *contentapi.ReadContentRequest, out contentapi.Content_ReadServer) error {
	content, there := c.d.blobs[r.Digest]
	if !there {
		return status.Error(codes.NotFound, r.Digest)
	}
	for piece := range slices.Chunk(content, max(3, len(content)/8)) {
		if err := out.Send(&contentapi.ReadContentResponse{Data: piece}); err != nil {
			return err
		}
	}
	return namespaced(out.Context())
}

func (d *daemon) Stream(s streamapi.Streaming_StreamServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	return s.Send(&anypb.Any{})
}

// Transfer stores names. As in containerd (core/transfer/image), a name that Transfer stores has
// exactly the labels of the destination.
func (d *daemon) Transfer(ctx context.Context, r *transferapi.TransferRequest) (*emptypb.Empty, error) {
	var to transfertypes.ImageStore
	if err := proto.Unmarshal(r.Destination.Value, &to); err != nil {
		return nil, err
	}
	var from transfertypes.OCIRegistry
	if r.Source.TypeUrl == string(proto.MessageName(&from)) {
		if err := proto.Unmarshal(r.Source.Value, &from); err != nil {
			return nil, err
		}
		if d.remote[from.Reference] == "" || from.Resolver.HostDir != paths.ContainerdHosts {
			return nil, status.Error(codes.NotFound, from.Reference)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.in(ctx)[to.Name] = &imagesapi.Image{Name: to.Name, Labels: to.Labels, Target: &types.Descriptor{Digest: d.remote[from.Reference]}}
		return &emptypb.Empty{}, namespaced(ctx)
	}
	for name, digest := range d.pulled {
		d.record(name, digest, nil)
	}
	for name, digest := range d.next {
		d.record(name, digest, to.Labels)
	}
	return &emptypb.Empty{}, nil
}

// record rewrites the record of an image, like an import or a pull.
func (d *daemon) record(name, digest string, labels map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes++
	d.images[name] = &imagesapi.Image{
		Name: name, Labels: labels, UpdatedAt: &timestamppb.Timestamp{Seconds: d.writes},
		CreatedAt: &timestamppb.Timestamp{Seconds: d.writes},
		Target:    &types.Descriptor{Digest: digest, Size: int64(len(d.blobs[digest]))},
	}
}

// smallConfig and anImage are the configuration and the manifest of an image with one layer.
var (
	smallConfig = configOf("small")
	anImage     = fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":1},"layers":[{"digest":%q,"size":2}]}`,
		digest.FromString(smallConfig), digest.FromString("packed small"))
)

const (
	fromFlux  = `{"config":{"mediaType":"application/vnd.cncf.flux.config.v1+json","digest":"sha256:c","size":1},"layers":[{"size":3}]}`
	fromOras  = `{"artifactType":"application/vnd.x","config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:c","size":2},"layers":[{"size":4}]}`
	typedOnly = `{"artifactType":"application/vnd.x","config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[{"size":4}]}`
)

func TestIsArtifact(t *testing.T) {
	d, store := started(t)
	read := func(digest string) (manifest, error) {
		text, err := store.texts(inNamespace(t.Context()))(digest)
		if err != nil {
			return manifest{}, err
		}
		return decoded(digest, text)
	}
	for text, want := range map[string]bool{
		anImage: false, fromFlux: true, fromOras: true, typedOnly: true, `{"layers":[{}]}`: false,
		`{"config":{"mediaType":"application/vnd.docker.container.image.v1+json"}}`:                        false,
		`{"manifests":[{}],"config":{"mediaType":"application/vnd.oci.empty.v1+json"},"artifactType":"x"}`: false,
	} {
		if m, err := read(d.put(text)); err != nil || m.isArtifact() != want {
			t.Errorf("%s: %+v, %v; want %t", text, m, err, want)
		}
	}
	if _, err := read(d.put("no manifest")); err == nil || !strings.Contains(err.Error(), "cannot parse manifest") {
		t.Errorf("%v", err)
	}
	if _, err := read(d.put(strings.Repeat(" ", maxManifest+1))); err == nil || !strings.Contains(err.Error(), "larger than the limit of a manifest") {
		t.Errorf("%v", err)
	}
}

// TestArtifacts: an imported artifact is pinned by its digest until it is released. Until then, the
// kubelet cannot delete it, and another artifact with the same name does not remove it. Images are
// not pinned.
func TestArtifacts(t *testing.T) {
	d, store := started(t)
	image, flux, oras := d.put(anImage), d.put(fromFlux), d.put(fromOras)
	d.next = map[string]string{"docker.io/library/web:1": image, "imported:1": flux, "sha256:c": flux}
	images, err := store.Import(t.Context(), anArchive())
	if err != nil || len(images) != 2 {
		t.Fatalf("%+v, %v", images, err)
	}
	want := []string{"docker.io/library/imported:1", "docker.io/library/web:1", "imported@" + flux, "sha256:c"}
	if got := d.names(); !slices.Equal(got, want) {
		t.Fatalf("the store has %q, want %q", got, want)
	}
	if pin := d.images[pinnedName(flux)]; pin.Labels["io.cri-containerd.pinned"] != "pinned" || pin.Target.Digest != flux {
		t.Errorf("the record of the pinned name is %v", pin)
	}
	d.next = map[string]string{"imported:1": oras}
	if _, err := store.Import(t.Context(), anArchive()); err != nil || d.images[pinnedName(flux)] == nil || d.images[pinnedName(oras)] == nil {
		t.Errorf("another artifact with the same name: %v, %q", err, d.names())
	}
	if again, err := store.Import(t.Context(), anArchive()); err != nil || len(again) != 1 || again[0].Name != "docker.io/library/imported:1" {
		t.Errorf("the same archive again: %+v, %v", again, err)
	}
	d.next = nil
	if _, err := store.Import(t.Context(), anArchive()); err == nil {
		t.Error("Import accepts an archive without images")
	}
	listed, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, i := range listed {
		shown = append(shown, fmt.Sprintf("%s %d", i.Name, i.Size))
	}
	slices.Sort(shown)
	if want := []string{fmt.Sprintf("docker.io/library/imported:1 %d", len(fromOras)+2+4), fmt.Sprintf("docker.io/library/web:1 %d", len(anImage)+1+2), fmt.Sprintf("imported@%s %d", flux, len(fromFlux)+1+3)}; !slices.Equal(shown, want) {
		t.Errorf("the list of images is %q\nwant %q", shown, want)
	}

	if err := store.Release(t.Context(), []string{flux, image, "sha256:none"}); err != nil {
		t.Fatal(err)
	}
	if got, want := d.names(), []string{"docker.io/library/imported:1", "docker.io/library/web:1", "imported@" + oras}; !slices.Equal(got, want) {
		t.Errorf("after the release, the store has %q, want %q", got, want)
	}
}

// TestUnpin: an artifact that no add-on has read for a long time loses its pin, which is its second
// name (pinnedName). An artifact that is too large for add-ons is never pinned.
func TestUnpin(t *testing.T) {
	d, store := started(t)
	flux, oras := d.put(fromFlux), d.put(fromOras)
	large := d.put(`{"artifactType":"application/vnd.x","config":{"mediaType":"application/vnd.oci.empty.v1+json"},"layers":[{"size":16777216},{"size":1}]}`)
	d.next = map[string]string{"docker.io/library/a:1": flux, "docker.io/library/b:1": oras, "docker.io/library/c:1": large}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	want := []string{"docker.io/library/a:1", "docker.io/library/b:1", "docker.io/library/c:1", pinnedName(flux), pinnedName(oras)}
	slices.Sort(want)
	if got := d.names(); !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	created := d.images[pinnedName(oras)].GetCreatedAt().AsTime()
	if err := store.Unpin(t.Context(), nil, created); err != nil || d.images[pinnedName(oras)] == nil {
		t.Errorf("Unpin of an artifact that is not older than the limit: %v, %q", err, d.names())
	}
	if err := store.Unpin(t.Context(), []string{flux}, created.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if d.images[pinnedName(oras)] != nil || d.images["docker.io/library/b:1"] == nil || d.images["docker.io/library/a:1"] == nil {
		t.Errorf("%q", d.names())
	}
}

// TestOpen checks that Open returns the content of blobs, and fs.ErrNotExist for a missing blob.
func TestOpen(t *testing.T) {
	d, store := started(t)
	for _, content := range []string{"a long content, in pieces", "", "abc"} {
		sum := strings.TrimPrefix(d.put(content), "sha256:")
		r, err := store.Open(t.Context(), artifact.Blob{SHA256: sum, Size: int64(len(content))})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, []byte(content)) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := store.Open(t.Context(), artifact.Blob{SHA256: strings.Repeat("0", 64)}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error for a missing blob: %v", err)
	}
}
