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

// An archive may contain OCI artifacts. They are not images: no container runs them, so the kubelet
// regards them as unused images, and would delete them to free space. Import gives each artifact
// for an add-on a second, pinned name made of its digest. The name exists until the add-on has read
// the artifact (Release), or until no add-on has read it for long (Unpin).

// The labels of the second name: the kubelet ignores names with the first label (containerd's
// internal/cri/labels), and the second label marks names of this package.
const (
	labelPinned   = "io.cri-containerd.pinned"
	labelArtifact = "orlop.dev/artifact"
)

// pinned returns the second name of an artifact.
func pinned(digest string) string { return tagged + "@" + digest }

// dockerConfig is docker's media type for the configuration of an image.
const dockerConfig = "application/vnd.docker.container.image.v1+json"

// isArtifact reports whether a manifest describes an artifact (image-spec, manifest.md, "Guidelines
// for Artifact Usage"). The signatures of cosign have the configuration of an image, but no layers
// that can be unpacked.
func (m manifest) isArtifact() bool {
	if len(m.Manifests) > 0 || m.Config.MediaType == "" {
		return false
	}
	if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return l.MediaType == imagesignature.ClaimType }) {
		return true
	}
	return m.ArtifactType != "" || m.Config.MediaType != ocispec.MediaTypeImageConfig && m.Config.MediaType != dockerConfig
}

// pin gives the artifacts among images their second names.
func (s *Store) pin(ctx context.Context, some []*imagesapi.Image) error {
	read := s.texts(ctx)
	for _, i := range some {
		if ofDigest(i.Name) {
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
			Name: pinned(i.Target.GetDigest()), Target: i.Target, Labels: map[string]string{labelPinned: "pinned", labelArtifact: "true"},
		}})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("image import: %s: cannot pin: %w", i.Name, err)
		}
	}
	return nil
}

// Unpin deletes the second names of artifacts imported before then, except artifacts with the given
// digests ("sha256:…"). From then on the kubelet may delete these artifacts.
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

// Release deletes artifacts by the digests ("sha256:…") of their manifests, with all their names.
// It does not delete images.
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
	// The second name is deleted last, because Release finds the artifact by it.
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

// remove deletes a name if its target is unchanged.
func (s *Store) remove(ctx context.Context, i *imagesapi.Image) error {
	_, err := imagesapi.NewImagesClient(s.conn).Delete(inNamespace(ctx), &imagesapi.DeleteImageRequest{Name: i.Name, Target: i.Target})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("images: cannot delete %s: %w", i.Name, err)
	}
	return nil
}

// Open reads any blob of the store. It implements artifact.Origin.
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
	err    error // the final error
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

// ofDigest reports whether a name is made of a digest: by containerd's CRI plugin, from the digest
// of a configuration, or by pin.
func ofDigest(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.HasPrefix(name, pinned("sha256:"))
}
