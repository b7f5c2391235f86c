package images

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
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/images/mirror"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/loopback"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// hasPeers reports whether there are peers with images for this machine.
func hasPeers(c *config.Config) bool {
	return c.Cluster != nil && (c.Machine.Spec.Role == config.RoleWorker || len(c.Cluster.Spec.ControlPlanes) > 1)
}

// mirrorLimits are the limits of the mirror. containerd fetches three layers of an image at once,
// with separate connections for each pull and each registry that it calls through the mirror. Every
// pod with hostNetwork can connect, so a connection without a token never displaces a connection
// with a token.
var mirrorLimits = loopback.Limits{Clients: 256, MaxUnauthenticated: 64, Header: 3 * time.Second, Idle: time.Minute}

// localMirror is an endpoint of the mirror on loopback: for images imported in the cluster, or for
// the configured mirrors, to which it forwards requests.
type localMirror struct {
	url string
	// clients must present the token, because pods in the machine's network namespace can connect,
	// too
	token string
}

// openMirror opens the mirror at its first call. Its two endpoints have different tokens, because
// containerd sends the token of the proxy also to the token issuer of a configured mirror.
func (m *Manager) openMirror() (images, proxy localMirror, err error) {
	if m.imageMirror.url != "" {
		return m.imageMirror, m.registryProxy, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return images, proxy, fmt.Errorf("images: cannot open the mirror: %w", err)
	}
	at := "http://" + listener.Addr().String()
	m.imageMirror, m.registryProxy = localMirror{at, rand.Text()}, localMirror{at, rand.Text()}
	proxyHandler := mirror.Proxy(&m.upstreams, m.registryProxy.token, func(registry string, reason error) {
		m.deps.Event("image", "failure", fmt.Sprintf("the mirror %s %v; containerd tries the next registry", registry, reason))
	})
	imageHandler := mirror.Handler(&peerImages{deps: &m.deps, own: m.imported, retryAt: map[netip.Addr]time.Time{}}, m.imageMirror.token)
	both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, mirror.ProxyPath) {
			proxyHandler.ServeHTTP(w, r)
			return
		}
		imageHandler.ServeHTTP(w, r)
	})
	panics.Go("mirror", func() {
		m.deps.Event("image", "failure", "the mirror has ended: "+loopback.Serve(listener, both, mirrorLimits).Error())
	})
	return m.imageMirror, m.registryProxy, nil
}

// peerImages is the image source of the mirror: the images imported on this machine and on the
// other control-plane machines.
type peerImages struct {
	deps *Deps
	own  mirror.Source // images of this machine, also for imagePullPolicy Always

	mu      sync.Mutex
	retryAt map[netip.Addr]time.Time // end of the delay for machines that did not answer
}

const (
	// resolveTimeout bounds the call of one machine. Every pull on this machine waits for it.
	resolveTimeout = 5 * time.Second
	// dialTimeout bounds the connection to another machine.
	dialTimeout = 20 * time.Second
	// peerRetryInterval is the delay after which a machine that did not answer is called again.
	// Without it, a pull would wait for the machine at each layer.
	peerRetryInterval = 30 * time.Second
)

// Find searches this machine first, and then calls the others in turn. It implements mirror.Source.
func (n *peerImages) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	if found, err := n.own.Find(ctx, name); err == nil {
		return found, nil
	}
	for _, addr := range n.available() {
		callCtx, cancel := context.WithTimeout(ctx, resolveTimeout)
		var found *api.ResolveImageResponse
		err := n.deps.Call(callCtx, addr, func(other *client.Client) (err error) {
			found, err = other.Image.Resolve(callCtx, &api.ResolveImageRequest{Name: name})
			return err
		})
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			n.backOff(addr)
		case found.GetDigest() != "":
			if name != found.Digest {
				n.deps.Event("image", "operation", fmt.Sprintf("%s is %s at %s, where it was imported", name, found.Digest, addr))
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

// open reads a blob from a machine over a connection of its own, because an error closes the
// connection, which other calls would share.
func (n *peerImages) open(ctx context.Context, addr netip.Addr, digest string) (io.ReadCloser, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := n.deps.Dial(dialing, addr)
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
	peers := n.deps.Peers()
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []netip.Addr
	for _, addr := range peers {
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

// Sources returns the blobs of archives imported on this machine, and the blobs of the other
// control-plane machines: of imported images and of extensions.
func (m *Manager) Sources() (imported, peers artifact.Source) {
	return m.store, blobsOfPeers{&peerImages{deps: &m.deps, own: m.imported, retryAt: map[netip.Addr]time.Time{}}}
}

// blobsOfPeers are the blobs of the other control-plane machines.
type blobsOfPeers struct{ from *peerImages }

// Open implements artifact.Source.
func (b blobsOfPeers) Open(ctx context.Context, blob artifact.Blob) (io.ReadCloser, error) {
	return b.from.Open(ctx, "sha256:"+blob.SHA256)
}
