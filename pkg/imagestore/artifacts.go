package imagestore

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
)

// An archive may contain OCI artifacts. No container uses them, so the kubelet regards them as
// unused images, and would delete them to free space. Therefore Import gives a second name to each
// artifact that can be for an add-on. This name contains the digest, and is pinned. The second name
// exists until the add-on has read the artifact (Release), or until no add-on has used the artifact
// for a long time (Unpin).

// The labels of the second name: with labelPinned, the kubelet does not delete the image
// (containerd's internal/cri/labels). labelArtifact marks the second names of this package.
const (
	labelPinned   = "io.cri-containerd.pinned"
	labelArtifact = "orlop.dev/artifact"
)

// pinnedName returns the second name of an artifact.
func pinnedName(digest string) string { return tagged + "@" + digest }

// dockerConfig is docker's media type for the configuration of an image.
const dockerConfig = "application/vnd.docker.container.image.v1+json"

// isArtifact reports whether a manifest describes an artifact (image-spec, manifest.md, "Guidelines
// for Artifact Usage"). Signatures of cosign are artifacts, too: they have the configuration of an
// image, but layers that cannot be unpacked.
func (m manifest) isArtifact() bool {
	if len(m.Manifests) > 0 || m.Config.MediaType == "" {
		return false
	}
	if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return l.MediaType == imagesignature.ClaimType }) {
		return true
	}
	return m.ArtifactType != "" || m.Config.MediaType != ocispec.MediaTypeImageConfig && m.Config.MediaType != dockerConfig
}

// pin gives second names to the artifacts among the given images.
func (s *Store) pin(ctx context.Context, some []*imagesapi.Image) error {
	read := s.texts(ctx)
	for _, i := range some {
		if isDigestName(i.Name) {
			continue
		}
		text, err := read(i.Target.GetDigest())
		var m manifest
		if err == nil {
			m, err = decoded(i.Target.GetDigest(), text)
		}
		if err != nil || !m.isArtifact() || m.layersSize() > artifact.MaxSize {
			if ctx.Err() != nil {
				return err
			}
			continue // deleted meanwhile, or an image, or too large for an add-on
		}
		_, err = imagesapi.NewImagesClient(s.conn).Create(ctx, &imagesapi.CreateImageRequest{Image: &imagesapi.Image{
			Name: pinnedName(i.Target.GetDigest()), Target: i.Target, Labels: map[string]string{labelPinned: "pinned", labelArtifact: "true"},
		}})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("image import: %s: cannot pin: %w", i.Name, err)
		}
	}
	return nil
}

// Unpin deletes the second names of the artifacts that were imported before the time `then`, except
// those of artifacts with the given digests ("sha256:…"). The kubelet can then delete the unpinned
// artifacts.
func (s *Store) Unpin(ctx context.Context, digests []string, then time.Time) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Labels[labelArtifact] == "" || slices.Contains(digests, i.Target.GetDigest()) || !i.GetCreatedAt().AsTime().Before(then) {
			continue
		}
		if err := s.remove(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// Release deletes all names of the artifacts with the manifest digests ("sha256:…"). It does not
// delete images.
func (s *Store) Release(ctx context.Context, digests []string) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	for _, i := range all {
		if d := i.Target.GetDigest(); i.Labels[labelArtifact] != "" && slices.Contains(digests, d) {
			ours[d] = true
		}
	}
	// The second name is deleted last: if Release is interrupted, the next call finds the artifact
	// by the second name.
	slices.SortFunc(all, func(a, b *imagesapi.Image) int { return len(a.Labels[labelArtifact]) - len(b.Labels[labelArtifact]) })
	for _, i := range all {
		if !ours[i.Target.GetDigest()] {
			continue
		}
		if err := s.remove(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes the name of image i. It does nothing if the name now has another target.
func (s *Store) remove(ctx context.Context, i *imagesapi.Image) error {
	_, err := imagesapi.NewImagesClient(s.conn).Delete(inNamespace(ctx), &imagesapi.DeleteImageRequest{Name: i.Name, Target: i.Target})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("images: cannot delete %s: %w", i.Name, err)
	}
	return nil
}

// Open reads any blob of the store. It implements artifact.Source.
func (s *Store) Open(ctx context.Context, b artifact.Blob) (io.ReadCloser, error) {
	return s.open(inNamespace(ctx), "sha256:"+b.SHA256)
}

// open reads a blob by its digest.
func (s *Store) open(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := contentapi.NewContentClient(s.conn).Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	r := &blob{digest: digest, stream: stream, cancel: cancel}
	if err == nil {
		err = r.receive() // only the first message shows whether the blob exists
	}
	if err != nil && err != io.EOF { // the stream of an empty blob ends at once
		cancel()
		if status.Code(err) == codes.NotFound {
			err = fs.ErrNotExist
		}
		return nil, fmt.Errorf("images: cannot read %s: %w", digest, err)
	}
	return r, nil
}

// blob reads a blob.
type blob struct {
	digest string
	stream contentapi.Content_ReadClient
	cancel context.CancelFunc
	rest   []byte
	err    error // the error that ended the stream; io.EOF at the end of the blob
}

func (b *blob) receive() error {
	part, err := b.stream.Recv()
	b.rest, b.err = part.GetData(), err
	return err
}

func (b *blob) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		_ = b.receive() // stored in b.err
	}
	if len(b.rest) == 0 {
		if b.err == io.EOF {
			return 0, io.EOF
		}
		return 0, fmt.Errorf("images: cannot read %s: %w", b.digest, b.err)
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close cancels the stream.
func (b *blob) Close() error {
	b.cancel()
	return nil
}

// isDigestName reports whether a name consists of a digest. containerd's CRI plugin makes such
// names of the digest of a configuration, and pin makes them of the digest of an artifact.
func isDigestName(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.HasPrefix(name, pinnedName("sha256:"))
}
