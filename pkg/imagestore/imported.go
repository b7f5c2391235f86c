package imagestore

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"sync"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// labelImported is on the names that Import has brought. Who pulls the same name later writes the record anew, without it.
const labelImported = "orlop.dev/imported"

// mark says of images that they were imported.
func (s *Store) mark(ctx context.Context, some []*imagesapi.Image) error {
	for _, i := range some {
		_, err := imagesapi.NewImagesClient(s.conn).Update(ctx, &imagesapi.UpdateImageRequest{
			// The target does not change; without one containerd panics (plugins/services/images, imageFromProto).
			Image:      &imagesapi.Image{Name: i.Name, Target: i.Target, Labels: map[string]string{labelImported: "true"}},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"labels." + labelImported}},
		})
		if err != nil && status.Code(err) != codes.NotFound { // it was deleted meanwhile
			return fmt.Errorf("image import: %s is there, but cannot be marked as imported: %w", i.Name, err)
		}
	}
	return nil
}

// Imported are the images that were imported, with everything that belongs to them. Images that were pulled are none of them: whoever
// pulled one may have shown a password for it, and what is given further has none to be asked for.
type Imported struct {
	store *Store

	mu sync.Mutex
	// trees are the blobs of each image by their digests, itself included, by the digest of its manifest or index.
	trees map[string]map[string]ocispec.Descriptor
}

// NewImported returns what was imported into a store.
func NewImported(s *Store) *Imported {
	return &Imported{store: s, trees: map[string]map[string]ocispec.Descriptor{}}
}

// Find returns what a name stands for, with registry and tag as Kubernetes has it, or the blob of an image that has a digest ("sha256:…").
// fs.ErrNotExist: nothing that was imported has it.
func (i *Imported) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	all, err := i.store.list(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	there := map[string]bool{}
	for _, image := range all {
		if image.Labels[labelImported] == "" || ofDigest(image.Name) {
			continue
		}
		target := described(image)
		if image.Name == name {
			return target, nil
		}
		there[target.Digest.String()] = true
		if blob, ok := i.treeLocked(ctx, target)[name]; ok {
			return blob, nil
		}
	}
	maps.DeleteFunc(i.trees, func(digest string, _ map[string]ocispec.Descriptor) bool { return !there[digest] })
	return ocispec.Descriptor{}, fmt.Errorf("images: none was imported that has %s: %w", name, fs.ErrNotExist)
}

// Open reads a blob that Find has found, by its digest.
func (i *Imported) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	return i.store.open(inNamespace(ctx), digest)
}

func described(i *imagesapi.Image) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: i.Target.GetMediaType(), Digest: digest.Digest(i.Target.GetDigest()), Size: i.Target.GetSize()}
}

// treeLocked is what belongs to an image. One that could not be read is looked at again the next time.
func (i *Imported) treeLocked(ctx context.Context, target ocispec.Descriptor) map[string]ocispec.Descriptor {
	if known := i.trees[target.Digest.String()]; known != nil {
		return known
	}
	tree := map[string]ocispec.Descriptor{}
	if grow(tree, i.store.blobs(inNamespace(ctx)), target) {
		i.trees[target.Digest.String()] = tree
	}
	return tree
}

// grow adds a manifest or an index to a tree, and what it names, and tells whether all of that could be read. What an index names for
// other machines than these was not imported.
func grow(tree map[string]ocispec.Descriptor, read blobs, target ocispec.Descriptor) (whole bool) {
	if _, known := tree[target.Digest.String()]; known {
		return true
	}
	m, err := read(target.Digest.String())
	if err != nil {
		return false
	}
	tree[target.Digest.String()] = target
	for _, part := range append(m.Layers, m.Config) {
		if part.Digest != "" {
			tree[part.Digest.String()] = part
		}
	}
	whole = true
	for _, part := range m.Manifests {
		if forUs(part) && !grow(tree, read, part) {
			whole = false
		}
	}
	return whole
}
