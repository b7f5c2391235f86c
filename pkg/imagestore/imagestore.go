// Package imagestore imports container images, unpacked, and OCI artifacts into containerd, and
// lists and reads its content.
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

// chunk is the maximum payload of a message; containerd reads in the same steps (32 KiB).
const chunk = 32 << 10

// Store is containerd's image store behind a connection to its socket.
type Store struct{ conn grpc.ClientConnInterface }

// New returns the store behind the connection.
func New(conn grpc.ClientConnInterface) *Store { return &Store{conn: conn} }

// Image is a name in the store.
type Image struct {
	Name   string
	Digest string // of the manifest or index, "sha256:…"
	// size of the compressed layers, configuration and manifest in bytes; 0 if unknown
	Size int64
}

// inNamespace selects the namespace of the kubelet, unless the context has selected one.
func inNamespace(ctx context.Context) context.Context {
	if md, _ := metadata.FromOutgoingContext(ctx); len(md.Get(namespaceHeader)) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, namespaceHeader, Namespace)
}

// namespaceHeader is the header with the namespace of a call (containerd, pkg/namespaces).
const namespaceHeader = "containerd-namespace"

// List returns all images by name. It omits a name made of a digest if the image has another name.
func (s *Store) List(ctx context.Context) ([]Image, error) {
	images, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	return s.present(ctx, images, images)
}

// Has reports whether an image has this name.
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

// present converts image records for display.
func (s *Store) present(ctx context.Context, some, all []*imagesapi.Image) ([]Image, error) {
	// the best name of each digest: a real name, else the pinned name of an artifact
	named := map[string]string{}
	for _, i := range all {
		if d := i.Target.GetDigest(); !ofDigest(i.Name) || i.Name == pinned(d) && named[d] == "" {
			named[d] = i.Name
		}
	}
	read := s.texts(inNamespace(ctx))
	var out []Image
	for _, i := range some {
		if best := named[i.Target.GetDigest()]; ofDigest(i.Name) && best != "" && best != i.Name {
			continue
		}
		// An image can be deleted meanwhile, and a name need not refer to an image: then the size
		// is unknown.
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

// Import reads an OCI or docker archive, plain or compressed, and stores its images, unpacked, and
// its artifacts. They survive a power cut after Import returns. Import returns the names in the
// archive, each once, as full names. An archive without a name is an error. An archive with an item
// that this machine cannot use, or with one of the reserved names, is also an error, and then none
// of its items stays.
//
// Import does not unpack the layers with containerd's transfer service. That service regards a
// layer as unpacked before its files are on the disk, and after a power cut containerd would run
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
	// The transfer service returns no names. The new names are recognized by their label and by the
	// time of the last write of their record.
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
	images, err := s.present(ctx, brought, all)
	if err == nil && len(images) == 0 {
		err = errors.New("image import: the archive has no named image for linux/amd64, and no artifact; save it under a name like registry.example.com/app:1")
	}
	return images, err
}

// transfer makes containerd store the content of an archive.
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
		// Names come from the annotations of the archive; the prefix applies to annotations with
		// only a tag. A manifest without a name gets none, not even a name made of its digest,
		// because no pod could use it. The index of the archive is such a manifest, and its name
		// would keep the content of images that are deleted later.
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

// imported returns the names of this import: the names with the import label and a record that was
// written since before. The label excludes images that a pod pulled meanwhile; the write time
// excludes earlier imports.
func imported(before, after []*imagesapi.Image) []*imagesapi.Image {
	was := map[string]*imagesapi.Image{}
	for _, i := range before {
		was[i.Name] = i
	}
	var brought []*imagesapi.Image
	for _, i := range after {
		old := was[i.Name]
		if i.Labels[labelImported] != "" && (old == nil || !old.UpdatedAt.AsTime().Equal(i.UpdatedAt.AsTime())) {
			brought = append(brought, i)
		}
	}
	return brought
}

// tagged is the name of images for which an archive has only a tag.
const tagged = "imported"

// send opens a stream and feeds it from r in the background, by containerd's stream protocol: the
// first message names the stream and is answered; then the receiver grants a window of bytes, and
// the sender sends no more than that. The stream ends with r or with ctx.
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

// pack wraps a message in the form of containerd: with the bare type name, without a host in front.
func pack(m proto.Message) (*anypb.Any, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", proto.MessageName(m), err)
	}
	return &anypb.Any{TypeUrl: string(proto.MessageName(m)), Value: b}, nil
}
