package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The signatures of an image have their own name, which contains the digest of the image (cosign,
// specs/SIGNATURE_SPEC.md). No container runs signatures, so the kubelet would delete them as
// unused images; then the image could not start again without the registry. Therefore fetched
// signatures are in a separate namespace, which the kubelet and containerd's CRI plugin do not see.
// Imported signatures come with their image into the namespace of the kubelet, and are pinned when
// they are used. Both kinds are deleted after their image.

// signatureNamespace is the containerd namespace of fetched signatures.
const signatureNamespace = "orlop-signatures"

// labelSignatureOf is the label of a name of signatures that is in use. Its value is the digest of
// the image's target.
const labelSignatureOf = "orlop.dev/signature-of"

// maxSignatures is the maximum size, in bytes, of the content that containerd fetches for a name of
// signatures. An index of referrers also names lists of packages, which containerd fetches with the
// bundles.
const maxSignatures = 64 << 20

// maxTargets is the maximum number of targets that Subjects examines. The same image can have
// several targets, because several indexes can contain it.
const maxTargets = 16

// Subject is a digest that a signature of an image can name, and the target of a name of the image.
// Digest is that of the target itself or, if the target is an index, of its manifest for this
// machine.
type Subject struct{ Digest, Target string }

// Subjects returns the subjects of an image; at least one if the error is nil. id is the digest of
// the image's configuration, by which containerd identifies the image. Subjects from names in the
// repository come first. The content of all subjects has been verified against their digests.
func (s *Store) Subjects(ctx context.Context, id, repository string) ([]Subject, error) {
	ctx = inNamespace(ctx)
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	read := func(digest string) ([]byte, error) { return s.document(ctx, digest, maxManifest) }
	return subjects(read, all, id, repository)
}

// subjects implements Subjects for the records of all names.
func subjects(read texts, all []*imagesapi.Image, id, repository string) (found []Subject, err error) {
	rank := func(i *imagesapi.Image) int {
		switch {
		case repositoryOf(i.Name) == repository:
			return 0
		case i.Name == id: // the name that containerd's CRI plugin gives each image
			return 1
		}
		return 2
	}
	all = slices.DeleteFunc(slices.Clone(all), func(i *imagesapi.Image) bool { return i.Labels[labelSignatureOf] != "" || rank(i) == 2 })
	slices.SortStableFunc(all, func(a, b *imagesapi.Image) int { return rank(a) - rank(b) })
	var targets []string
	for _, i := range all {
		target := i.Target.GetDigest()
		if len(targets) == maxTargets {
			break
		}
		if slices.Contains(targets, target) {
			continue
		}
		targets = append(targets, target)
		w := walk{read: read}
		chosen, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(target)}, 0)
		if err != nil || chosen == nil || chosen.manifest.Config.Digest.String() != id {
			continue // another image, or damaged
		}
		found = append(found, Subject{target, target})
		if manifest := chosen.Digest.String(); manifest != target {
			found = append(found, Subject{manifest, target})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("images: no manifest of %s is in the store of this machine: %w", id, fs.ErrNotExist)
	}
	return found, nil
}

// repositoryOf returns the repository in a name; "" if the name contains none.
func repositoryOf(name string) string {
	if named, err := reference.ParseNormalizedNamed(name); err == nil && !isDigestName(name) {
		return named.Name()
	}
	return ""
}

// Document reads a document by its digest and verifies its content. More than limit bytes are an
// error. fetched selects fetched instead of imported signatures.
func (s *Store) Document(ctx context.Context, fetched bool, digest string, limit int64) ([]byte, error) {
	return s.document(signatureContext(ctx, fetched), digest, limit)
}

// signatureContext selects the namespace of fetched or of imported signatures.
func signatureContext(ctx context.Context, fetched bool) context.Context {
	if fetched {
		return metadata.AppendToOutgoingContext(ctx, namespaceHeader, signatureNamespace)
	}
	return inNamespace(ctx)
}

func (s *Store) document(ctx context.Context, name string, limit int64) ([]byte, error) {
	want := digest.Digest(name)
	if !artifact.IsSHA256(want) {
		return nil, fmt.Errorf("images: %.80q is not a SHA-256", name)
	}
	r, err := s.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > limit:
		return nil, fmt.Errorf("images: %s has more than %d bytes", name, limit)
	case digest.FromBytes(text) != want:
		return nil, fmt.Errorf("images: the content of %s is damaged", name)
	}
	return text, nil
}

// Signatures returns the digest of the target of a name of fetched or imported signatures. The
// error is fs.ErrNotExist if the name does not exist.
func (s *Store) Signatures(ctx context.Context, fetched bool, name string) (string, error) {
	i, err := s.get(signatureContext(ctx, fetched), name)
	return i.GetTarget().GetDigest(), err
}

// FetchSignatures pulls a name of signatures of an image from the registry or a mirror, with the
// credentials of the machine, and does not unpack the content. The error is fs.ErrNotExist if the
// registry does not have the name. FetchSignatures also deletes the signatures of images that do
// not exist any more.
func (s *Store) FetchSignatures(ctx context.Context, name, image string) error {
	there := signatureContext(ctx, true)
	source, err := pack(&transfertypes.OCIRegistry{Reference: name, Resolver: &transfertypes.RegistryResolver{HostDir: paths.ContainerdHosts}})
	if err != nil {
		return err
	}
	destination, err := pack(&transfertypes.ImageStore{Name: name, Labels: map[string]string{labelSignatureOf: image}})
	if err != nil {
		return err
	}
	_, err = transferapi.NewTransferClient(s.conn).Transfer(there, &transferapi.TransferRequest{Source: source, Destination: destination})
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("images: %s: %w", name, fs.ErrNotExist)
	} else if err != nil {
		return fmt.Errorf("images: cannot pull %s: %s", name, status.Convert(err).Message())
	}
	if err := s.checkSize(there, name); err != nil {
		return err
	}
	return s.removeOrphans(ctx)
}

// checkSize returns an error for a name of fetched signatures with more content than maxSignatures,
// and deletes the name.
func (s *Store) checkSize(ctx context.Context, name string) error {
	i, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	tree, w := map[string]ocispec.Descriptor{}, walk{read: s.texts(ctx)}
	_, err = w.grow(tree, descriptorOf(i), 0)
	var size int64
	for _, part := range tree {
		size += part.Size
	}
	if err == nil && size > maxSignatures {
		err = fmt.Errorf("%d bytes, limit %d", size, maxSignatures)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("images: %s is too large for signatures: %w", name, err), s.remove(ctx, i))
	}
	return nil
}

// removeOrphans deletes the signatures of images that do not exist any more.
func (s *Store) removeOrphans(ctx context.Context) error {
	// The fetched signatures are listed first. An image is stored before its signatures, so the
	// later list contains the image of each listed signature. In the other order, a concurrent pull
	// could add signatures of an image that the earlier list lacks.
	fetched, err := s.list(signatureContext(ctx, true))
	if err != nil {
		return err
	}
	images, err := s.list(signatureContext(ctx, false))
	if err != nil {
		return err
	}
	for _, gone := range orphans(fetched, images) {
		if err := s.remove(signatureContext(ctx, true), gone); err != nil {
			return err
		}
	}
	for _, gone := range orphans(images, images) {
		if err := s.remove(signatureContext(ctx, false), gone); err != nil {
			return err
		}
	}
	return nil
}

// orphans returns the names of signatures for images that have no name any more.
func orphans(signatures, images []*imagesapi.Image) (gone []*imagesapi.Image) {
	there := map[string]bool{}
	for _, i := range images {
		if i.Labels[labelSignatureOf] == "" {
			there[i.Target.GetDigest()] = true
		}
	}
	for _, i := range signatures {
		if of := i.Labels[labelSignatureOf]; of != "" && !there[of] {
			gone = append(gone, i)
		}
	}
	return gone
}

// PinSignatures pins a name of imported signatures until their image has no name any more.
func (s *Store) PinSignatures(ctx context.Context, name, image string) error {
	ctx = inNamespace(ctx)
	i, err := s.get(ctx, name)
	if err != nil {
		return err
	}
	if i.Labels[labelSignatureOf] == image {
		return nil
	}
	labels := map[string]string{}
	maps.Copy(labels, i.Labels)
	labels[labelPinned], labels[labelSignatureOf] = "pinned", image
	if err := s.record(ctx, &imagesapi.Image{Name: name, Target: i.Target, Labels: labels}); err != nil {
		return fmt.Errorf("images: cannot pin %s: %w", name, err)
	}
	return nil
}
