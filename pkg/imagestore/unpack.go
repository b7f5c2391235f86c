package imagestore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

const (
	// snapshotter is the snapshotter that machined configures in containerd.
	snapshotter = "overlayfs"
	// labelSnapshot is a label on the configuration of an image. Its value is the snapshot of the
	// layers, which the label protects from containerd's garbage collection.
	labelSnapshot = "containerd.io/gc.ref.snapshot." + snapshotter
	// leaseTTL is the TTL of the lease that protects the snapshots during an unpack. It applies if
	// this process dies before it releases the lease.
	leaseTTL = time.Hour
	// cleanupTimeout is the timeout of the cleanup after an unpack.
	cleanupTimeout = 10 * time.Second
)

// unpack creates the snapshots of images, layer after layer, before the first container needs them.
// Otherwise containerd would unpack the image for each container. If fifty containers start at
// once, containerd would unpack it fifty times, and all containers would fail after the kubelet's
// timeout of two minutes. unpack skips artifacts, and images that were deleted meanwhile.
//
// It performs the steps of containerd's client (client/image.go, Unpack). Unlike the client, it
// syncs the files of each layer to the disk before it commits the layer.
func (s *Store) unpack(ctx context.Context, some []*imagesapi.Image) (err error) {
	ctx, release, err := s.lease(ctx)
	if err != nil {
		return fmt.Errorf("image import: cannot unpack: %w", err)
	}
	defer func() { err = errors.Join(err, release()) }()
	done := map[string]bool{}
	for _, i := range some {
		if d := i.Target.GetDigest(); !done[d] {
			done[d] = true
			if err := s.unpackOne(ctx, d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("image import: %s: cannot unpack: %w", i.Name, err)
			}
		}
	}
	return nil
}

// lease returns a context with a lease. Content that calls with this context create is protected
// from garbage collection until release is called.
func (s *Store) lease(ctx context.Context) (leased context.Context, release func() error, err error) {
	leases := leasesapi.NewLeasesClient(s.conn)
	id := "orlop-" + random()
	_, err = leases.Create(ctx, &leasesapi.CreateRequest{ID: id, Labels: map[string]string{"containerd.io/gc.expire": time.Now().Add(leaseTTL).UTC().Format(time.RFC3339)}})
	if err != nil {
		return nil, nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", id), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_, err := leases.Delete(ctx, &leasesapi.DeleteRequest{ID: id})
		return err
	}, nil
}

func random() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// unpackOne unpacks the image with a digest, or the image for this machine in the index with this
// digest. It does nothing if there is no such image.
func (s *Store) unpackOne(ctx context.Context, target string) error {
	w := walk{read: s.texts(ctx), configs: true}
	found, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(target)}, 0)
	if err != nil || found == nil || found.manifest.isArtifact() {
		return err
	}
	m, layers := found.manifest, found.layers
	if len(layers) != len(m.Layers) {
		return fmt.Errorf("it has %d layers, and its configuration names %d", len(m.Layers), len(layers))
	}
	top := ""
	for i, layer := range m.Layers {
		below := top
		top = identity.ChainID(slices.Clone(layers[:i+1])).String() // ChainID changes its argument
		if err := s.apply(ctx, layer, layers[i].String(), top, below); err != nil {
			return fmt.Errorf("layer %d of %d: %w", i+1, len(m.Layers), err)
		}
	}
	_, err = contentapi.NewContentClient(s.conn).Update(ctx, &contentapi.UpdateRequest{
		Info:       &contentapi.Info{Digest: m.Config.Digest.String(), Labels: map[string]string{labelSnapshot: top}},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels." + labelSnapshot}},
	})
	if status.Code(err) == codes.NotFound { // the image was deleted meanwhile
		return nil
	}
	return err
}

// apply unpacks a layer into a new snapshot with the given name, on top of the snapshot `below`. It
// does nothing if the snapshot exists. plain is the digest of the uncompressed layer.
func (s *Store) apply(ctx context.Context, layer ocispec.Descriptor, plain, name, below string) (err error) {
	snapshots := snapshotsapi.NewSnapshotsClient(s.conn)
	if _, err := snapshots.Stat(ctx, &snapshotsapi.StatSnapshotRequest{Snapshotter: snapshotter, Key: name}); status.Code(err) != codes.NotFound {
		return err
	}
	key := "extract-" + random() + " " + name
	made, err := snapshots.Prepare(ctx, &snapshotsapi.PrepareSnapshotRequest{Snapshotter: snapshotter, Key: key, Parent: below})
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_, tidied := snapshots.Remove(ctx, &snapshotsapi.RemoveSnapshotRequest{Snapshotter: snapshotter, Key: key})
		if status.Code(err) == codes.AlreadyExists { // containerd unpacked it for a container
			err = nil
		}
		err = errors.Join(err, tidied)
	}()
	applied, err := diffapi.NewDiffClient(s.conn).Apply(ctx, &diffapi.ApplyRequest{
		Diff:   &types.Descriptor{MediaType: layer.MediaType, Digest: layer.Digest.String(), Size: layer.Size, Annotations: layer.Annotations},
		Mounts: made.Mounts, SyncFs: true,
	})
	if err != nil {
		return err
	}
	if got := applied.Applied.GetDigest(); got != plain {
		return fmt.Errorf("its content is %s, and the image's configuration says %s", got, plain)
	}
	_, err = snapshots.Commit(ctx, &snapshotsapi.CommitSnapshotRequest{Snapshotter: snapshotter, Name: name, Key: key})
	return err
}
