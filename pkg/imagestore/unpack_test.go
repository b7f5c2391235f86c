package imagestore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// disk is the overlayfs snapshotter of the fake daemon.
type disk struct {
	snapshots map[string]string // layers by snapshot name, the lowest first
	lease     string
	log       []string
	full      bool
	other     string // a snapshot that another client commits first
}

// use checks the namespace, lease and snapshotter of a call.
func (d *daemon) use(ctx context.Context, snapshotter string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if got := md.Get("containerd-lease"); len(got) != 1 || got[0] != d.disk.lease || snapshotter != "overlayfs" {
		return status.Errorf(codes.FailedPrecondition, "lease %v, snapshotter %q", got, snapshotter)
	}
	return namespaced(ctx)
}

type snapshots struct {
	snapshotsapi.UnimplementedSnapshotsServer
	d *daemon
}

func (s snapshots) Stat(ctx context.Context, r *snapshotsapi.StatSnapshotRequest) (*snapshotsapi.StatSnapshotResponse, error) {
	if _, there := s.d.disk.snapshots[r.Key]; !there {
		return nil, status.Error(codes.NotFound, r.Key)
	}
	return &snapshotsapi.StatSnapshotResponse{}, s.d.use(ctx, r.Snapshotter)
}

func (s snapshots) Prepare(ctx context.Context, r *snapshotsapi.PrepareSnapshotRequest) (*snapshotsapi.PrepareSnapshotResponse, error) {
	below, there := s.d.disk.snapshots[r.Parent]
	if r.Parent != "" && !there {
		return nil, status.Error(codes.NotFound, r.Parent)
	}
	s.d.disk.snapshots[r.Key] = below
	return &snapshotsapi.PrepareSnapshotResponse{Mounts: []*types.Mount{{Type: "bind", Source: r.Key}}}, s.d.use(ctx, r.Snapshotter)
}

func (s snapshots) Commit(ctx context.Context, r *snapshotsapi.CommitSnapshotRequest) (*emptypb.Empty, error) {
	if r.Name == s.d.disk.other {
		s.d.disk.snapshots[r.Name] = "content of another client"
	}
	if _, there := s.d.disk.snapshots[r.Name]; there {
		return nil, status.Error(codes.AlreadyExists, r.Name)
	}
	s.d.disk.snapshots[r.Name] = s.d.disk.snapshots[r.Key]
	delete(s.d.disk.snapshots, r.Key)
	return &emptypb.Empty{}, s.d.use(ctx, r.Snapshotter)
}

func (s snapshots) Remove(ctx context.Context, r *snapshotsapi.RemoveSnapshotRequest) (*emptypb.Empty, error) {
	delete(s.d.disk.snapshots, r.Key)
	return &emptypb.Empty{}, s.d.use(ctx, r.Snapshotter)
}

type diffs struct {
	diffapi.UnimplementedDiffServer
	d *daemon
}

// Apply unpacks a layer. In these tests, the content "packed X" stands for the compressed layer X.
func (a diffs) Apply(ctx context.Context, r *diffapi.ApplyRequest) (*diffapi.ApplyResponse, error) {
	content, there := a.d.blobs[r.Diff.Digest]
	switch {
	case !there:
		return nil, status.Error(codes.NotFound, r.Diff.Digest)
	case !r.SyncFs:
		return nil, status.Error(codes.FailedPrecondition, "without SyncFs, a power cut would leave a partial layer")
	case a.d.disk.full:
		return nil, status.Error(codes.Unknown, "no space left on device")
	}
	plain := strings.TrimPrefix(string(content), "packed ")
	a.d.disk.log = append(a.d.disk.log, plain)
	a.d.disk.snapshots[r.Mounts[0].Source] += plain + "/"
	return &diffapi.ApplyResponse{Applied: &types.Descriptor{Digest: digest.FromString(plain).String()}}, a.d.use(ctx, "overlayfs")
}

type leases struct {
	leasesapi.UnimplementedLeasesServer
	d *daemon
}

func (l leases) Create(ctx context.Context, r *leasesapi.CreateRequest) (*leasesapi.CreateResponse, error) {
	l.d.disk.lease = r.ID
	return &leasesapi.CreateResponse{Lease: &leasesapi.Lease{ID: r.ID}}, namespaced(ctx)
}

func (l leases) Delete(ctx context.Context, r *leasesapi.DeleteRequest) (*emptypb.Empty, error) {
	if r.ID != l.d.disk.lease {
		return nil, status.Error(codes.NotFound, r.ID)
	}
	l.d.disk.lease = ""
	return &emptypb.Empty{}, namespaced(ctx)
}

// Update sets labels of a blob.
func (c contents) Update(ctx context.Context, r *contentapi.UpdateRequest) (*contentapi.UpdateResponse, error) {
	if _, there := c.d.blobs[r.Info.Digest]; !there {
		return nil, status.Error(codes.NotFound, r.Info.Digest)
	}
	has := c.d.labels[r.Info.Digest]
	if has == nil {
		has = map[string]string{}
		c.d.labels[r.Info.Digest] = has
	}
	err := namespaced(ctx)
	for _, path := range r.UpdateMask.GetPaths() {
		key := strings.TrimPrefix(path, "labels.")
		has[key] = r.Info.Labels[key]
		if key == labelSnapshot { // before this label exists, the lease must protect the snapshot
			err = c.d.use(ctx, "overlayfs")
		}
	}
	return &contentapi.UpdateResponse{Info: r.Info}, err
}

// List sends the blobs with the label from the request, a message per blob.
func (c contents) List(r *contentapi.ListContentRequest, out contentapi.Content_ListServer) error {
	if !slices.Equal(r.Filters, []string{`labels."orlop.dev/imported"`}) {
		return status.Errorf(codes.InvalidArgument, "filters %q", r.Filters)
	}
	for digest, labels := range c.d.labels {
		if labels["orlop.dev/imported"] == "" {
			continue
		}
		if err := out.Send(&contentapi.ListContentResponse{Info: []*contentapi.Info{{Digest: digest, Labels: labels}}}); err != nil {
			return err
		}
	}
	return namespaced(out.Context())
}

// configOf returns an image configuration that names layers.
func configOf(layers ...string) string {
	var ids []string
	for _, l := range layers {
		ids = append(ids, fmt.Sprintf("%q", digest.FromString(l)))
	}
	return fmt.Sprintf(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[%s]}}`, strings.Join(ids, ","))
}

// image adds an image with these layers and this configuration. It returns the digests of the
// manifest and the configuration.
func (d *daemon) image(config string, layers ...string) (manifest, configDigest string) {
	var all []string
	for _, l := range layers {
		all = append(all, fmt.Sprintf(`{"mediaType":"layer","digest":%q}`, d.put("packed "+l)))
	}
	configDigest = d.put(config)
	return d.put(fmt.Sprintf(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q},"layers":[%s]}`, configDigest, strings.Join(all, ","))), configDigest
}

func chain(layers ...string) string {
	var ids []digest.Digest
	for _, l := range layers {
		ids = append(ids, digest.FromString(l))
	}
	return identity.ChainID(ids).String()
}

// TestUnpack: an import unpacks each layer once on top of the layer below. The snapshots are
// protected from garbage collection, and no partial layer remains.
func TestUnpack(t *testing.T) {
	d, store := started(t)
	web, config := d.image(configOf("base", "web"), "base", "web")
	mail, _ := d.image(configOf("base", "mail"), "base", "mail")
	index := d.put(fmt.Sprintf(`{"manifests":[{"digest":"sha256:x","platform":{"os":"linux","architecture":"arm64"}},{"digest":%q,"platform":{"os":"linux","architecture":"amd64"}}]}`, web))
	d.next = map[string]string{"example.com/web:1": index, "example.com/web:latest": index, "example.com/mail:1": mail, "example.com/chart:1": d.put(fromFlux)}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{chain("base"): "base/", chain("base", "web"): "base/web/", chain("base", "mail"): "base/mail/"} {
		if got := d.disk.snapshots[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if slices.Sort(d.disk.log); !slices.Equal(d.disk.log, []string{"base", "mail", "web"}) || len(d.disk.snapshots) != 3 || d.disk.lease != "" {
		t.Errorf("unpacked: %v; the snapshots are %v, lease %q", d.disk.log, d.disk.snapshots, d.disk.lease)
	}
	if got := d.labels[config]["containerd.io/gc.ref.snapshot.overlayfs"]; got != chain("base", "web") {
		t.Errorf("the label of the image protects %q", got)
	}

	// The same image is imported again, with a new image that another client unpacks first.
	other, _ := d.image(configOf("base", "other"), "base", "other")
	d.disk.log, d.disk.other, d.next = nil, chain("base", "other"), map[string]string{"example.com/web:1": index, "example.com/other:1": other}
	if _, err := store.Import(t.Context(), anArchive()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.disk.log, []string{"other"}) || len(d.disk.snapshots) != 4 || d.disk.lease != "" {
		t.Errorf("unpacked: %v; the snapshots are %v", d.disk.log, d.disk.snapshots)
	}

	for name, c := range map[string]struct {
		layers []string
		config string
		full   bool
		want   string
	}{
		"full":   {[]string{"base", "big"}, configOf("base", "big"), true, "docker.io/library/full:1: cannot unpack: layer 2 of 2: rpc error: code = Unknown desc = no space left on device"},
		"forged": {[]string{"base", "evil"}, configOf("base", "good"), false, "layer 2 of 2: its content is " + digest.FromString("evil").String()},
		"short":  {[]string{"base", "new"}, configOf("base"), false, "it has 2 layers, and its configuration names 1"},
		"odd":    {[]string{"base"}, "[]", false, "its configuration cannot be decoded"},
	} {
		manifest, _ := d.image(c.config, c.layers...)
		d.disk.full, d.next = c.full, map[string]string{name + ":1": manifest}
		if _, err := store.Import(t.Context(), anArchive()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if len(d.disk.snapshots) != 4 || d.disk.lease != "" {
			t.Errorf("%s: the snapshots are %v, lease %q", name, d.disk.snapshots, d.disk.lease)
		}
	}

	// An image that was deleted after its import is not an error.
	gone := []*imagesapi.Image{{Name: "gone:1", Target: &types.Descriptor{Digest: "sha256:" + strings.Repeat("0", 64)}}}
	if err := store.unpack(inNamespace(t.Context()), gone); err != nil {
		t.Error(err)
	}
}
