package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/mirror"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How an image that was imported on a control-plane machine reaches all machines of the cluster
// (docs/decisions/0041-images-from-peers.md):
//
//  1. The import labels the names of the image (pkg/imagestore).
//  2. When containerd of another machine pulls it, a mirror on loopback comes before any registry
//     (registries.go, pkg/mirror).
//  3. The mirror reads the images imported on this machine, calls the control-plane machines
//     (Resolve), and passes on the blobs of the first that has the image (ReadBlob).

type imageAPI struct {
	api.UnimplementedImageServer
	m *machine
}

// maxImport bounds an import: an archive of more than 64 GiB is a mistake.
const maxImport = 64 << 30

func (a imageAPI) Import(stream grpc.ClientStreamingServer[api.ImportImageRequest, api.ImportImageResponse]) error {
	if err := a.m.containerdReady(); err != nil {
		return err
	}
	images, err := imagestore.New(a.m.containerd).Import(stream.Context(), io.LimitReader(&transfer.Chunks[*api.ImportImageRequest]{Receive: stream.Recv}, maxImport))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for _, i := range images {
		a.m.events.add("image", "operation", "imported "+i.Name+" by "+caller(stream.Context()))
	}
	wake(a.m.imagesChanged)
	return stream.SendAndClose(&api.ImportImageResponse{Images: toImages(images)})
}

func (a imageAPI) List(ctx context.Context, _ *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	if err := a.m.containerdReady(); err != nil {
		return nil, err
	}
	images, err := imagestore.New(a.m.containerd).List(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.ListImagesResponse{Images: toImages(images)}, nil
}

func toImages(in []imagestore.Image) []*api.ContainerImage {
	var out []*api.ContainerImage
	for _, i := range in {
		out = append(out, &api.ContainerImage{Name: i.Name, Digest: i.Digest, Size: i.Size})
	}
	return out
}

// checkCaller rejects every caller but another machine, and all callers while containerd does not
// run.
func (a imageAPI) checkCaller(ctx context.Context) error {
	if err := requireMachine(ctx); err != nil {
		return err
	}
	return a.m.containerdReady()
}

func (a imageAPI) Resolve(ctx context.Context, r *api.ResolveImageRequest) (*api.ResolveImageResponse, error) {
	if err := a.checkCaller(ctx); err != nil {
		return nil, err
	}
	found, err := a.m.importedImages.Find(ctx, r.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return &api.ResolveImageResponse{}, nil
	} else if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.ResolveImageResponse{Digest: found.Digest.String(), MediaType: found.MediaType, Size: found.Size}, nil
}

// maxBlobReads bounds the blobs that are sent to other machines at once, and maxBlobReadsPerMachine
// the blobs to one machine; further calls wait. Each uses some messages of containerd, one mebibyte
// each, in PID 1. A slow machine leaves two to the others.
const (
	maxBlobReads           = 4
	maxBlobReadsPerMachine = 2
)

func (a imageAPI) ReadBlob(r *api.ReadBlobRequest, stream grpc.ServerStreamingServer[api.ReadBlobResponse]) error {
	if err := a.checkCaller(stream.Context()); err != nil {
		return err
	}
	found, err := a.m.importedImages.Find(stream.Context(), r.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return status.Error(codes.NotFound, err.Error())
	} else if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	waiting, cancel := context.WithCancel(stream.Context())
	defer context.AfterFunc(a.m.runCtx, cancel)()
	defer cancel()
	leave, err := a.m.blobReads.Wait(waiting, memberID(stream.Context()))
	switch {
	case err == nil:
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	default:
		return status.Error(codes.Unavailable, "this machine is shutting down")
	}
	return a.m.serve(stream.Context(), func(ctx context.Context, taken func()) error {
		defer leave()
		blob, err := a.m.importedImages.Open(ctx, found.Digest.String())
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		defer blob.Close()
		for piece := make([]byte, transfer.ChunkSize); ; taken() {
			n, err := io.ReadFull(blob, piece)
			if n > 0 {
				if err := stream.Send(&api.ReadBlobResponse{Chunk: piece[:n]}); err != nil {
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

// hasPeers reports whether there are peers with images for this machine.
func hasPeers(c *config.Config) bool {
	return c.Cluster != nil && (isWorker(c) || len(c.Cluster.Spec.ControlPlanes) > 1)
}

// mirrorLimits are the limits of the mirror. containerd fetches three layers of an image at once,
// with separate connections for each pull and each registry that it calls through the mirror. Every
// pod with hostNetwork can connect, so a connection without a token never displaces a connection
// with a token.
var mirrorLimits = mirror.Limits{Clients: 256, MaxUnauthenticated: 64, Header: 3 * time.Second, Idle: time.Minute}

// localMirror is an endpoint of the mirror on loopback: for images imported in the cluster, or as
// the proxy of mirrors.
type localMirror struct {
	url string
	// required, because pods in the machine's network namespace can connect too
	token string
}

// openMirror opens the mirror at its first call. It has a token for imported images, and another
// for mirrors, which containerd also sends to the token issuer of a mirror.
func (m *machine) openMirror() (images, proxy localMirror, err error) {
	if m.imageMirror.url != "" {
		return m.imageMirror, m.registryProxy, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return images, proxy, fmt.Errorf("images: cannot open the mirror: %w", err)
	}
	at := "http://" + listener.Addr().String()
	m.imageMirror, m.registryProxy = localMirror{at, rand.Text()}, localMirror{at, rand.Text()}
	proxyHandler := mirror.Proxy(&m.mirrors, m.registryProxy.token, func(registry string, reason error) {
		m.events.add("image", "failure", fmt.Sprintf("the mirror %s %v; containerd tries the next registry", registry, reason))
	})
	imageHandler := mirror.Handler(&peerImages{m: m, own: m.importedImages, retryAt: map[netip.Addr]time.Time{}}, m.imageMirror.token)
	both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, mirror.ProxyPath) {
			proxyHandler.ServeHTTP(w, r)
			return
		}
		imageHandler.ServeHTTP(w, r)
	})
	panics.Go("mirror", func() {
		m.events.add("image", "failure", "the mirror has ended: "+mirror.Serve(listener, both, mirrorLimits).Error())
	})
	return m.imageMirror, m.registryProxy, nil
}

// peerImages is the image source of the mirror: the images imported on this machine and on the
// other control-plane machines.
type peerImages struct {
	m   *machine
	own mirror.Source // with imagePullPolicy: Always, an image on this machine is resolved too

	mu      sync.Mutex
	retryAt map[netip.Addr]time.Time // end of the delay for machines that did not answer
}

const (
	// resolveTimeout bounds the call of one machine. Every pull on this machine waits for it.
	resolveTimeout = 5 * time.Second
	// peerRetryInterval is the delay after which a machine that did not answer is called again: a
	// pull resolves each layer separately.
	peerRetryInterval = 30 * time.Second
)

// Find searches this machine first, and then calls the others in turn. It implements mirror.Source.
func (n *peerImages) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	if found, err := n.own.Find(ctx, name); err == nil {
		return found, nil
	}
	for _, addr := range n.available() {
		callCtx, cancel := context.WithTimeout(ctx, resolveTimeout)
		found, err := call(callCtx, n.m, addr, func(other *client.Client) (*api.ResolveImageResponse, error) {
			return other.Image.Resolve(callCtx, &api.ResolveImageRequest{Name: name})
		})
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			n.backOff(addr)
		case found.GetDigest() != "":
			if name != found.Digest {
				n.m.events.add("image", "operation", fmt.Sprintf("%s is %s at %s, where it was imported", name, found.Digest, addr))
			}
			return ocispec.Descriptor{Digest: digest.Digest(found.Digest), MediaType: found.MediaType, Size: found.Size}, nil
		}
	}
	return ocispec.Descriptor{}, fs.ErrNotExist
}

// Open reads a blob from the first machine that has it. It implements mirror.Source.
func (n *peerImages) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if blob, err := n.own.Open(ctx, digest); err == nil {
		return blob, nil
	}
	failed := fs.ErrNotExist
	for _, addr := range n.available() {
		blob, err := n.open(ctx, addr, digest)
		if err == nil {
			return blob, nil
		}
		failed = fmt.Errorf("machine %s: %s", addr, status.Convert(err).Message())
	}
	return nil, failed
}

// open reads a blob from a machine over a connection of its own: an error on a shared connection
// closes it.
func (n *peerImages) open(ctx context.Context, addr netip.Addr, digest string) (io.ReadCloser, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, _, err := n.m.dialPeer(dialing, addr)
	if err != nil {
		return nil, err
	}
	stream, err := c.Image.ReadBlob(ctx, &api.ReadBlobRequest{Digest: digest})
	var first *api.ReadBlobResponse
	if err == nil {
		first, err = stream.Recv() // the first message shows whether the machine has the blob
	}
	if err != nil && !errors.Is(err, io.EOF) { // an empty blob ends at once
		_ = c.Close()
		return nil, err
	}
	return &transfer.Chunks[*api.ReadBlobResponse]{Receive: stream.Recv, Rest: first.GetChunk(), CloseFunc: c.Close}, nil
}

// available returns the machines to call.
func (n *peerImages) available() []netip.Addr {
	now, _ := n.m.config.Get()
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []netip.Addr
	for _, addr := range n.m.syncPeers(now.config) {
		if time.Now().After(n.retryAt[addr]) {
			out = append(out, addr)
		}
	}
	return out
}

func (n *peerImages) backOff(addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.retryAt[addr] = time.Now().Add(peerRetryInterval)
}
