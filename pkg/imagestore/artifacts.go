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
)

// An archive may hold artefacts, which are no images: nothing runs of them, so to the kubelet they
// are images that nobody needs, and it would delete them when it wants room. Import gives each that
// an add-on can take a second name, made of its digest, which is pinned. It stays until somebody
// says that he has taken what he needs of it (Release), or that nobody has for long (Unpin).

// The labels of the second name: the first one has the kubelet leave it alone (containerd's
// internal/cri/labels), the second one says that it is ours.
const (
	labelPinned   = "io.cri-containerd.pinned"
	labelArtifact = "orlop.dev/artifact"
)

// pinned is the second name of an artefact.
func pinned(digest string) string { return tagged + "@" + digest }

// dockerConfig is the configuration of an image as docker has it.
const dockerConfig = "application/vnd.docker.container.image.v1+json"

// isArtifact says whether a manifest is that of an artefact (image-spec, manifest.md, "Guidelines
// for Artifact Usage").
func (m manifest) isArtifact() bool {
	if len(m.Manifests) > 0 || m.Config.MediaType == "" {
		return false
	}
	return m.ArtifactType != "" || m.Config.MediaType != ocispec.MediaTypeImageConfig && m.Config.MediaType != dockerConfig
}

// pin gives the artefacts among images their second names.
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
			continue // it was deleted meanwhile, or it is an image, or too large for an add-on
		}
		_, err = imagesapi.NewImagesClient(s.conn).Create(ctx, &imagesapi.CreateImageRequest{Image: &imagesapi.Image{
			Name: pinned(i.Target.GetDigest()), Target: i.Target, Labels: map[string]string{labelPinned: "pinned", labelArtifact: "true"},
		}})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return fmt.Errorf("image import: %s is there, but the kubelet cannot be kept from deleting it: %w", i.Name, err)
		}
	}
	return nil
}

// Unpin takes the second names of artefacts that were imported before then, but for those with
// digests ("sha256:…"): whether they stay is the kubelet's to decide from now on.
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

// Release deletes artefacts, by the digests ("sha256:…") of their manifests, under all their names.
// Images stay.
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
	// The name by which they are found goes last.
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

// remove deletes a name, if it is still of the same.
func (s *Store) remove(ctx context.Context, i *imagesapi.Image) error {
	_, err := imagesapi.NewImagesClient(s.conn).Delete(inNamespace(ctx), &imagesapi.DeleteImageRequest{Name: i.Name, Target: i.Target})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("images: cannot delete %s: %w", i.Name, err)
	}
	return nil
}

// Open reads a blob that is in the store, whatever belongs to it. It is artifact.Origin's.
func (s *Store) Open(ctx context.Context, b artifact.Blob) (io.ReadCloser, error) {
	return s.open(inNamespace(ctx), "sha256:"+b.SHA256)
}

// open reads a blob by its digest.
func (s *Store) open(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := contentapi.NewContentClient(s.conn).Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	r := &blob{digest: digest, stream: stream, cancel: cancel}
	if err == nil {
		err = r.receive() // only now it says whether it has it
	}
	if err != nil && err != io.EOF { // an empty one ends at once
		cancel()
		if status.Code(err) == codes.NotFound {
			err = fs.ErrNotExist
		}
		return nil, fmt.Errorf("images: cannot read %s: %w", digest, err)
	}
	return r, nil
}

// blob is one that is read.
type blob struct {
	digest string
	stream contentapi.Content_ReadClient
	cancel context.CancelFunc
	rest   []byte
	err    error // the end
}

func (b *blob) receive() error {
	part, err := b.stream.Recv()
	b.rest, b.err = part.GetData(), err
	return err
}

func (b *blob) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		_ = b.receive() // remembered
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

// Close ends the reading.
func (b *blob) Close() error {
	b.cancel()
	return nil
}

// ofDigest tells whether a name is made of a digest: by containerd's Kubernetes interface, of that
// of an image's configuration, or by pin.
func ofDigest(name string) bool {
	return strings.HasPrefix(name, "sha256:") || strings.HasPrefix(name, pinned("sha256:"))
}
