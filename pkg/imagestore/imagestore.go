// Package imagestore imports container images and OCI artifacts into containerd, unpacks the
// images, and lists and reads the content of containerd's store.
//
// It uses containerd's gRPC services directly (transfer, streaming, images, content, snapshots,
// diff, leases) through the generated code of github.com/containerd/containerd/api. containerd's
// own client module is more convenient, but it requires newer Kubernetes libraries than the
// embedded Kubernetes, and would triple the size of PID 1; see
// docs/decisions/0004-containerd-api.md.
package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	streamapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/orlop-os/orlop/pkg/panics"
)

// Namespace is the containerd namespace that the kubelet uses.
const Namespace = "k8s.io"

// chunk is the maximum payload of a message, in bytes. containerd reads pieces of the same size.
const chunk = 32 << 10

// Store is containerd's image store behind a connection to its socket.
type Store struct{ conn grpc.ClientConnInterface }

// New returns the store behind the connection.
func New(conn grpc.ClientConnInterface) *Store { return &Store{conn: conn} }

// Image is a name in the store, with the digest and size of the content to which it refers.
type Image struct {
	Name   string
	Digest string // of the manifest or index, "sha256:…"
	// size of the compressed layers, configuration and manifest in bytes; 0 if unknown
	Size int64
}

// inNamespace selects the namespace of the kubelet, unless the context already selects a namespace.
func inNamespace(ctx context.Context) context.Context {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(namespaceHeader)) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, namespaceHeader, Namespace)
}

// namespaceHeader is the header with the namespace of a call (containerd, pkg/namespaces).
const namespaceHeader = "containerd-namespace"

// List returns all names in the store. It omits a name made of a digest (isDigestName) if the image
// has another name.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	images, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return s.display(ctx, images, images)
}

// Has reports whether the store has this name.
func (s *Store) Has(ctx context.Context, name string) (bool, error) {
	_, err := s.get(inNamespace(ctx), name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// get returns the record of a name; the error is fs.ErrNotExist if there is none.
func (s *Store) get(ctx context.Context, name string) (*imagesapi.Image, error) {
	r, err := imagesapi.NewImagesClient(s.conn).Get(ctx, &imagesapi.GetImageRequest{Name: name})
	if status.Code(err) == codes.NotFound {
		return nil, fmt.Errorf("images: %s: %w", name, fs.ErrNotExist)
	} else if err != nil {
		return nil, fmt.Errorf("images: cannot get %s: %w", name, err)
	}
	return r.Image, nil
}

// display converts the selected records for display. all are the records of the whole store.
func (s *Store) display(ctx context.Context, selected, all []*imagesapi.Image) ([]Image, error) {
	// named has the best name of each digest: a name that is not made of a digest, or otherwise the
	// pinned name of an artifact.
	named := map[string]string{}
	for _, i := range all {
		if d := i.Target.GetDigest(); !isDigestName(i.Name) || i.Name == pinnedName(d) && named[d] == "" {
			named[d] = i.Name
		}
	}
	read := s.texts(inNamespace(ctx))
	var out []Image
	for _, i := range selected {
		if best := named[i.Target.GetDigest()]; isDigestName(i.Name) && best != "" && best != i.Name {
			continue
		}
		// The size is unknown if the image was deleted meanwhile, or if the name does not refer to
		// an image.
		size, err := sizeOf(read, i.Target.GetDigest(), i.Target.GetSize())
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		out = append(out, Image{Name: i.Name, Digest: i.Target.GetDigest(), Size: size})
	}
	return out, nil
}

func (s *Store) list(ctx context.Context) ([]*imagesapi.Image, error) {
	r, err := imagesapi.NewImagesClient(s.conn).List(inNamespace(ctx), &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("images: cannot list: %w", err)
	}
	return r.Images, nil
}

// Import reads an OCI or docker archive, plain or compressed, stores its images and artifacts, and
// unpacks the images. When Import returns, a power cut can no longer damage these images and
// artifacts. Import returns the full names of the items in the archive, each once. An archive
// without a name is an error. An archive with an item that this machine cannot use, or with a
// reserved name, is also an error. In this case, Import removes all items of the archive again.
//
// Import does not unpack the layers with containerd's transfer service. That service marks a layer
// as unpacked before its files are on the disk. After a power cut, containerd would then run
// incomplete programs.
func (s *Store) Import(ctx context.Context, from io.Reader, reserved ...string) ([]Image, error) {
	ctx, cancel := context.WithCancel(inNamespace(ctx))
	defer cancel()
	from, err := archive(from)
	if err != nil {
		return nil, err
	}
	before, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.transfer(ctx, from); err != nil {
		return nil, err
	}
	// The transfer service returns no names. imported finds the new names by their label, and by
	// the time at which their record was written.
	all, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	brought, err := s.finish(ctx, before, imported(before, all), reserved)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.pin(ctx, brought), s.mark(ctx, brought)); err != nil {
		return nil, err
	}
	if err := s.unpack(ctx, brought); err != nil {
		return nil, err
	}
	if all, err = s.list(ctx); err != nil {
		return nil, err
	}
	images, err := s.display(ctx, brought, all)
	if err == nil && len(images) == 0 {
		err = errors.New("image import: the archive has no named image for linux/amd64, and no artifact; save it under a name like registry.example.com/app:1")
	}
	return images, err
}

// transfer sends an archive to containerd, which stores its content and names.
func (s *Store) transfer(ctx context.Context, from io.Reader) error {
	id, err := s.send(ctx, from)
	if err != nil {
		return fmt.Errorf("image import: cannot open a stream to containerd: %w", err)
	}
	source, err := pack(&transfertypes.ImageImportStream{Stream: id})
	if err != nil {
		return err
	}
	destination, err := pack(&transfertypes.ImageStore{
		// The names come from the annotations of the archive. If an annotation has only a tag, the
		// name begins with the prefix. A manifest without an annotation gets no name, not even a
		// name made of its digest, because no pod could use such a name. The index of the archive
		// is such a manifest: with a name, it would retain the content of images that are deleted
		// later.
		ExtraReferences: []*transfertypes.ImageReference{{Name: tagged, IsPrefix: true, AllowOverwrite: true}},
		Labels:          map[string]string{labelImported: "true"},
		Platforms:       []*types.Platform{{OS: "linux", Architecture: architecture}},
	})
	if err != nil {
		return err
	}
	_, err = transferapi.NewTransferClient(s.conn).Transfer(ctx, &transferapi.TransferRequest{Source: source, Destination: destination})
	if err != nil {
		return refused(status.Convert(err).Message())
	}
	return nil
}

// imported returns the records of this import: those of the list `current` that have the import
// label, and that the list `previous` does not contain with the same write time. The label excludes
// images that were pulled for a pod meanwhile; the write time excludes earlier imports.
func imported(previous, current []*imagesapi.Image) []*imagesapi.Image {
	was := map[string]*imagesapi.Image{}
	for _, i := range previous {
		was[i.Name] = i
	}
	var brought []*imagesapi.Image
	for _, i := range current {
		old := was[i.Name]
		if i.Labels[labelImported] != "" && (old == nil || !old.UpdatedAt.AsTime().Equal(i.UpdatedAt.AsTime())) {
			brought = append(brought, i)
		}
	}
	return brought
}

// tagged is the repository in the name of an image for which the archive has only a tag.
const tagged = "imported"

// send opens a stream and feeds it from r in the background, by containerd's stream protocol: the
// first message names the stream, and containerd answers it. Then the receiver repeatedly grants a
// number of bytes (window), and the sender sends at most this number. The stream ends at the end of
// r or of ctx.
func (s *Store) send(ctx context.Context, r io.Reader) (string, error) {
	stream, err := streamapi.NewStreamingClient(s.conn).Stream(ctx)
	if err != nil {
		return "", err
	}
	id := "orlop-" + random()
	hello, err := pack(&streamapi.StreamInit{ID: id})
	if err != nil {
		return "", err
	}
	if err := stream.Send(hello); err != nil {
		return "", err
	}
	if _, err := stream.Recv(); err != nil {
		return "", err
	}
	panics.Go("image import", func() { feed(stream, r) })
	return id, nil
}

func feed(stream streamapi.Streaming_StreamClient, r io.Reader) {
	defer stream.CloseSend()
	buf := make([]byte, chunk)
	for window := 0; ; {
		for window <= 0 {
			grant, err := stream.Recv()
			if err != nil {
				return // the receiver has finished or is gone; the transfer call returns the reason
			}
			var update transfertypes.WindowUpdate
			if proto.Unmarshal(grant.Value, &update) == nil {
				window += int(update.Update)
			}
		}
		n, err := r.Read(buf[:min(window, chunk)])
		if n > 0 {
			window -= n
			data, perr := pack(&transfertypes.Data{Data: buf[:n]})
			if perr != nil || stream.Send(data) != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pack wraps a message as containerd does: the type URL is only the type name, without a host
// before it.
func pack(m proto.Message) (*anypb.Any, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", proto.MessageName(m), err)
	}
	return &anypb.Any{TypeUrl: string(proto.MessageName(m)), Value: b}, nil
}
