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

// labelImported is on the names that Import has brought. Who pulls such a name writes its record
// anew, without it, and that may be the machine itself, through its own mirror. So it is on the
// content, too, which a pull leaves as it is, with the name behind it: another name of the same
// content was not imported.
const labelImported = "orlop.dev/imported"

// contentLabel says of a content that it was imported under a name.
func contentLabel(name string) string { return labelImported + "." + name }

// mark says of what images are made of that it was imported under their names.
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
		if err != nil && status.Code(err) != codes.NotFound { // it was deleted meanwhile
			return fmt.Errorf("image import: %s is there, but cannot be marked as imported: %w", i.Name, err)
		}
	}
	return nil
}

// marks are the labels of all content that was imported, by its digest.
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
		return nil, fmt.Errorf("images: cannot list what was imported: %w", err)
	}
	return all, nil
}

// Imported are the images that were imported, with everything that belongs to them. Images that
// were pulled are none of them: whoever pulled one may have shown a password for it, and what is
// given further has none to be asked for.
type Imported struct {
	store *Store

	mu sync.Mutex
	// trees are the blobs of each image by their digests, itself included, by the digest of its
	// manifest or index.
	trees map[string]map[string]ocispec.Descriptor
}

// NewImported returns what was imported into a store.
func NewImported(s *Store) *Imported {
	return &Imported{store: s, trees: map[string]map[string]ocispec.Descriptor{}}
}

// Find returns what a name stands for, with registry and tag as Kubernetes has it, or the blob of
// an image that has a digest ("sha256:…"). fs.ErrNotExist: nothing that was imported has it.
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
		target := described(image)
		marked := image.Labels[labelImported] != "" || marks[target.Digest.String()][contentLabel(image.Name)] != ""
		if !marked || ofDigest(image.Name) {
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
	return ocispec.Descriptor{}, fmt.Errorf("images: none was imported that has %s: %w", name, fs.ErrNotExist)
}

// Open reads a blob that Find has found, by its digest.
func (i *Imported) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	return i.store.open(inNamespace(ctx), digest)
}

func described(i *imagesapi.Image) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: i.Target.GetMediaType(), Digest: digest.Digest(i.Target.GetDigest()), Size: i.Target.GetSize()}
}

// treeLocked is what belongs to an image. One that could not be read is looked at again the next
// time.
func (i *Imported) treeLocked(ctx context.Context, target ocispec.Descriptor) map[string]ocispec.Descriptor {
	if known := i.trees[target.Digest.String()]; known != nil {
		return known
	}
	tree := map[string]ocispec.Descriptor{}
	w := walk{read: i.store.texts(inNamespace(ctx))}
	whole, err := w.grow(tree, target, 0)
	if err != nil {
		// it stays too large, however often it is read
		tree, whole = map[string]ocispec.Descriptor{}, true
	}
	if whole {
		i.trees[target.Digest.String()] = tree
	}
	return tree
}
