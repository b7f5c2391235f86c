package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Config is the configuration of a machine's images.
type Config struct {
	Config  *config.Config // nil if the machine has none, or an unreadable one
	OnTrial bool           // the previous configuration may become active again
}

// Deps is the environment of a Manager.
type Deps struct {
	Containerd grpc.ClientConnInterface // connection to containerd's socket
	Running    cell.View[bool]          // reports whether containerd runs
	Config     cell.View[Config]        // contains the configured add-ons
	// UpgradePending reports whether the previous version may become active again.
	UpgradePending func() bool
	// PauseImage returns the name of the system's pause image.
	PauseImage func() string
	// Imported is called after the system's images were imported.
	Imported func()
	// Peers returns the other machines of the cluster that can have imported images.
	Peers func() []netip.Addr
	// Call makes a call to another machine over the connection that all calls share.
	Call func(ctx context.Context, addr netip.Addr, do func(*client.Client) error) error
	// Dial opens a connection to another machine.
	Dial func(ctx context.Context, addr netip.Addr) (*client.Client, error)
	// Serve runs send(), which sends data to another machine. After each piece, send() calls
	// taken(). Serve ends a transfer that stalls.
	Serve func(ctx context.Context, send func(ctx context.Context, taken func()) error) error
	// Egress returns the proxy and the CAs with which registries are reached at present.
	Egress func() egress.Config
	// Extension opens a file of an extension by its SHA-256; the error is fs.ErrNotExist if this
	// machine does not have it.
	Extension func(sha256 string) (io.ReadCloser, error)
	// Stopping is canceled at shutdown.
	Stopping context.Context
	// Event adds an event to the machine's events.
	Event func(source, kind, message string)
}

// Manager provides the images and artifacts of a machine.
type Manager struct {
	deps      Deps
	store     *imagestore.Store
	imported  *imagestore.Imported // imported images that other machines can pull
	blobReads *limits.Limiter      // blobs that other machines pull
	artifacts *cell.Cell[Artifacts]
	// wakes RunArtifacts: containerd started, or an image was imported
	changed cell.Signal

	// Only ConfigureRegistries sets and reads imageMirror and registryProxy.
	imageMirror   localMirror // for imported images
	registryProxy localMirror // as the proxy of configured mirrors
	upstreams     upstreams   // configured mirrors
}

// New returns the manager of a machine.
func New(d Deps) *Manager {
	store := imagestore.New(d.Containerd)
	return &Manager{
		deps: d, store: store, imported: imagestore.NewImported(store), blobReads: limits.NewLimiter(maxBlobReads, maxBlobReadsPerMachine),
		artifacts: cell.New(Artifacts{}), changed: cell.NewSignal(),
	}
}

// maxImport bounds the bytes that an import reads. An archive of more than 64 GiB is a mistake.
const maxImport = 64 << 30

// Import imports an archive of images for a caller. It cannot replace the pause image, because
// every pod runs a container from this image.
func (m *Manager) Import(ctx context.Context, archive io.Reader, by string) ([]imagestore.Image, error) {
	images, err := m.store.Import(ctx, io.LimitReader(archive, maxImport), m.deps.PauseImage())
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		m.deps.Event("image", "operation", "imported "+i.Name+" by "+by)
	}
	m.changed.Wake()
	return images, nil
}

// List returns the images of this machine.
func (m *Manager) List(ctx context.Context) ([]imagestore.Image, error) { return m.store.List(ctx) }

// Find returns an image that was imported on this machine, by its name or digest; the error is
// fs.ErrNotExist if there is none.
func (m *Manager) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	return m.imported.Find(ctx, name)
}

// maxBlobReads bounds the blobs that are sent to other machines at once, and maxBlobReadsPerMachine
// the blobs to one machine; further calls wait. For each blob, PID 1 holds some messages of
// containerd, of a mebibyte each. A slow machine occupies at most two of the four reads and leaves
// two to the other machines.
const (
	maxBlobReads           = 4
	maxBlobReadsPerMachine = 2
)

// finder returns a function that opens a blob of an imported image or of an extension; the error is
// fs.ErrNotExist if this machine has neither.
func (m *Manager) finder(ctx context.Context, digest string) (open func(context.Context) (io.ReadCloser, error), err error) {
	sum, _ := strings.CutPrefix(digest, "sha256:")
	if file, err := m.deps.Extension(sum); err == nil {
		_ = file.Close() // it was opened only for reading
		return func(context.Context) (io.ReadCloser, error) { return m.deps.Extension(sum) }, nil
	}
	found, err := m.imported.Find(ctx, digest)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (io.ReadCloser, error) { return m.imported.Open(ctx, found.Digest.String()) }, nil
}

// SendBlob sends a blob of an imported image, or of an extension, to another machine, within the
// limit for that machine. Its errors are gRPC statuses.
func (m *Manager) SendBlob(ctx context.Context, digest, peer string, send func(piece []byte) error) error {
	open, err := m.finder(ctx, digest)
	if errors.Is(err, fs.ErrNotExist) {
		return status.Error(codes.NotFound, err.Error())
	} else if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	waiting, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(m.deps.Stopping, cancel)()
	defer cancel()
	leave, err := m.blobReads.Wait(waiting, peer)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Error(codes.Unavailable, "this machine is shutting down")
	}
	return m.deps.Serve(ctx, func(ctx context.Context, taken func()) error {
		defer leave()
		blob, err := open(ctx)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		defer blob.Close()
		for piece := make([]byte, transfer.ChunkSize); ; taken() {
			n, err := io.ReadFull(blob, piece)
			if n > 0 {
				if err := send(piece[:n]); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			} else if err != nil {
				return status.Error(codes.Unavailable, err.Error())
			}
		}
	})
}

// importTimeout bounds the import of an archive in the system's image.
const importTimeout = 2 * time.Minute

// importRetry is the delay after a failed import, for example because the disk was full.
const importRetry = 30 * time.Second

// RunImport imports the container images of the system, above all the pause image, whenever
// containerd has started without them.
func (m *Manager) RunImport(ctx context.Context) {
	up := false
	for w := m.deps.Running.Watch(); ; {
		now := w.Current()
		var again <-chan time.Time
		if now && !up {
			if err := m.importSystemImages(ctx); err != nil {
				m.deps.Event("image", "failure", err.Error())
				now, again = false, time.After(importRetry)
			} else {
				m.deps.Imported()
				m.changed.Wake()
			}
		}
		up = now
		select {
		case <-w.Changed():
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Manager) importSystemImages(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	if have, err := m.store.Has(ctx, m.deps.PauseImage()); err != nil || have {
		return err
	}
	archives, err := filepath.Glob(paths.Images + "/*.tar")
	if err != nil {
		return fmt.Errorf("images: cannot list the image's own: %w", err)
	}
	for _, name := range archives {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("images: cannot open: %w", err)
		}
		images, err := m.store.Import(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, i := range images {
			m.deps.Event("image", "operation", "imported "+i.Name+" from the system's image")
		}
	}
	return nil
}
