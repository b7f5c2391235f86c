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

// containerd stores an image as a name and a target: the digest of a manifest or an index. The
// signatures of an image are stored like an image of their own, under a name that contains the
// digest of the signed image (cosign, specs/SIGNATURE_SPEC.md).
//
// No container uses such a name, so the kubelet would delete it as an unused image. The signed
// image could then not start again while the registry is unreachable. Therefore fetched signatures
// are in a separate namespace, which the kubelet and containerd's CRI plugin do not see. Imported
// signatures are stored with their image in the namespace of the kubelet. When they are first used,
// they are pinned, so that the kubelet does not delete them. Both kinds are deleted some time after
// the signed image (removeOrphans).

// signatureNamespace is the containerd namespace of fetched signatures.
const signatureNamespace = "orlop-signatures"

// labelSignatureOf is the label of the name of fetched or pinned signatures. Its value is the
// target of the signed image.
const labelSignatureOf = "orlop.dev/signature-of"

// maxSignatures is the maximum size, in bytes, of all content of one name of signatures. The
// content is more than the signatures: an index of referrers also lists documents such as lists of
// packages, and containerd fetches them, too.
const maxSignatures = 64 << 20

// maxTargets is the maximum number of targets that Subjects examines. An image can have several
// targets, because several indexes can contain its manifest.
const maxTargets = 16

// Subject is a digest that a signature of an image can contain. Target is the target of one of the
// names of the image. Digest is Target itself or, if Target is an index, the digest of its manifest
// for this machine.
type Subject struct{ Digest, Target string }

// Subjects returns the subjects of an image; at least one if the error is nil. id is the digest of
// the image's configuration, by which containerd identifies the image. The subjects of names in the
// given repository come first. Subjects has verified the content of all subjects against their
// digests.
func (s *Store) Subjects(ctx context.Context, id, repository string) ([]Subject, error) {
	ctx = inNamespace(ctx)
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	read := func(digest string) ([]byte, error) { return s.document(ctx, digest, maxManifest) }
	return subjects(read, all, id, repository)
}

// subjects implements Subjects. all contains the records of all names in containerd.
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
			continue // it is another image, or its content is damaged
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

// Document reads a document of signatures by its digest and verifies its content. It fails if the
// document has more than limit bytes. It reads from the fetched signatures if fetched is true, and
// otherwise from the imported signatures.
func (s *Store) Document(ctx context.Context, fetched bool, digest string, limit int64) ([]byte, error) {
	return s.document(signatureContext(ctx, fetched), digest, limit)
}

// signatureContext returns a context that selects the namespace of fetched signatures, or, if
// fetched is false, that of imported signatures.
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

// Signatures returns the target of a name of signatures: fetched signatures if fetched is true, and
// otherwise imported signatures. The error is fs.ErrNotExist if the name does not exist.
func (s *Store) Signatures(ctx context.Context, fetched bool, name string) (string, error) {
	i, err := s.get(signatureContext(ctx, fetched), name)
	return i.GetTarget().GetDigest(), err
}

// FetchSignatures pulls signatures by their name from the registry or a mirror, with the
// credentials of the machine, and does not unpack the content. image is the target of the signed
// image. The error is fs.ErrNotExist if the registry does not have the name. FetchSignatures also
// deletes the signatures of images that do not exist any more.
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

// checkSize returns an error if the content of a name of fetched signatures has more than
// maxSignatures bytes. In this case, it also deletes the name.
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
	// The order of the two lists matters: signatures first, then images. An image is stored before
	// its signatures, so the second list contains the image of each signature in the first list. In
	// the other order, signatures of an image that is pulled meanwhile would be deleted.
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

// orphans returns the records of signatures whose signed image has no name any more.
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

// PinSignatures pins a name of imported signatures until the signed image has no name any more.
// image is the target of the signed image.
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
