package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"sync"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// labelImported is the label of names that Import has created. A pull of the same name, for example
// through the machine's own mirror, rewrites the record of the name without the label. Therefore
// the content also has a label, which a pull does not change. The label of the content ends with
// the name, because the same content can have other names that were not imported.
const labelImported = "orlop.dev/imported"

// contentLabel returns the label of content that was imported under a name.
func contentLabel(name string) string { return labelImported + "." + name }

// mark labels the content of images as imported under their names.
func (s *Store) mark(ctx context.Context, some []*imagesapi.Image) error {
	for _, i := range some {
		labels := map[string]string{labelImported: "true", contentLabel(i.Name): "true"}
		mask := &fieldmaskpb.FieldMask{}
		for label := range labels {
			mask.Paths = append(mask.Paths, "labels."+label)
		}
		_, err := contentapi.NewContentClient(s.conn).Update(ctx, &contentapi.UpdateRequest{
			Info: &contentapi.Info{Digest: i.Target.GetDigest(), Labels: labels}, UpdateMask: mask,
		})
		if err != nil && status.Code(err) != codes.NotFound { // deleted meanwhile
			return fmt.Errorf("image import: %s: cannot label as imported: %w", i.Name, err)
		}
	}
	return nil
}

// marks returns the labels of all imported content, by its digest.
func (s *Store) marks(ctx context.Context) (map[string]map[string]string, error) {
	stream, err := contentapi.NewContentClient(s.conn).List(inNamespace(ctx), &contentapi.ListContentRequest{Filters: []string{`labels."` + labelImported + `"`}})
	all := map[string]map[string]string{}
	for err == nil {
		var some *contentapi.ListContentResponse
		some, err = stream.Recv()
		for _, info := range some.GetInfo() {
			all[info.Digest] = info.Labels
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("images: cannot list imported content: %w", err)
	}
	return all, nil
}

// Imported provides the imported images with all their content, without a password. It excludes
// pulled images, because their registry may require a password.
type Imported struct {
	store *Store

	mu sync.Mutex
	// trees has an entry for each target, by its digest. A target is the manifest or index to which
	// an imported name refers. The entry has the target and all its blobs, by their digests.
	trees map[string]map[string]ocispec.Descriptor
}

// NewImported returns the imported images of a store.
func NewImported(s *Store) *Imported {
	return &Imported{store: s, trees: map[string]map[string]ocispec.Descriptor{}}
}

// Find returns the target of an imported name (with registry and tag as in Kubernetes), or the blob
// of an imported image with a digest ("sha256:…"). The error is fs.ErrNotExist if no imported image
// has the name or the blob.
func (i *Imported) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	all, err := i.store.list(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	marks, err := i.store.marks(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	there := map[string]bool{}
	for _, image := range all {
		target := descriptorOf(image)
		marked := image.Labels[labelImported] != "" || marks[target.Digest.String()][contentLabel(image.Name)] != ""
		if !marked || isDigestName(image.Name) {
			continue
		}
		if image.Name == name {
			return target, nil
		}
		there[target.Digest.String()] = true
		if blob, ok := i.treeLocked(ctx, target)[name]; ok {
			return blob, nil
		}
	}
	maps.DeleteFunc(i.trees, func(digest string, _ map[string]ocispec.Descriptor) bool { return !there[digest] })
	return ocispec.Descriptor{}, fmt.Errorf("images: no imported image has %s: %w", name, fs.ErrNotExist)
}

// Open reads a blob that Find has returned, by its digest.
func (i *Imported) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	return i.store.open(inNamespace(ctx), digest)
}

func descriptorOf(i *imagesapi.Image) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: i.Target.GetMediaType(), Digest: digest.Digest(i.Target.GetDigest()), Size: i.Target.GetSize()}
}

// treeLocked returns the blobs of an image by their digests. It caches the result only if it could
// read the image completely. The lock must be held.
func (i *Imported) treeLocked(ctx context.Context, target ocispec.Descriptor) map[string]ocispec.Descriptor {
	if known := i.trees[target.Digest.String()]; known != nil {
		return known
	}
	tree := map[string]ocispec.Descriptor{}
	w := walk{read: i.store.texts(inNamespace(ctx))}
	whole, err := w.grow(tree, target, 0)
	if err != nil {
		// The image is too large, which cannot change. So the cache gets an empty tree.
		tree, whole = map[string]ocispec.Descriptor{}, true
	}
	if whole {
		i.trees[target.Digest.String()] = tree
	}
	return tree
}
