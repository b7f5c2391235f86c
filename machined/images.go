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
)

// How an image that was imported on one control-plane machine comes to all machines of the cluster
// (docs/decisions/0041-images-from-neighbours.md):
//
//  1. The import marks its names (pkg/imagestore).
//  2. containerd of another machine is to pull one. Before any registry it asks a mirror on
//     loopback (registries.go, pkg/mirror).
//  3. That looks at what was imported here, asks the control-plane machines (Find), and passes on
//     what one of them sends (Read).

type imageAPI struct {
	api.UnimplementedImageServer
	m *machine
}

// maxImport bounds one import: an archive of images of 64 GiB is a mistake.
const maxImport = 64 << 30

func (a imageAPI) Import(stream grpc.ClientStreamingServer[api.ImportImageRequest, api.ImportImageResponse]) error {
	if err := a.m.containerdReady(); err != nil {
		return err
	}
	images, err := imagestore.New(a.m.containerd).Import(stream.Context(), io.LimitReader(&chunks[*api.ImportImageRequest]{receive: stream.Recv}, maxImport))
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for _, i := range images {
		a.m.events.add("image", "op", "imported "+i.Name+" by "+caller(stream.Context()))
	}
	kick(a.m.imported)
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

// forMachine refuses everybody but another machine, and everybody while containerd is away.
func (a imageAPI) forMachine(ctx context.Context) error {
	if err := fromMachine(ctx); err != nil {
		return err
	}
	return a.m.containerdReady()
}

func (a imageAPI) Find(ctx context.Context, r *api.FindImageRequest) (*api.FindImageResponse, error) {
	if err := a.forMachine(ctx); err != nil {
		return nil, err
	}
	found, err := a.m.given.Find(ctx, r.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return &api.FindImageResponse{}, nil
	} else if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &api.FindImageResponse{Digest: found.Digest.String(), MediaType: found.MediaType, Size: found.Size}, nil
}

// mostPulled is how many blobs are sent to other machines at once, and mostPulledByOne how many to
// one of them; whoever comes then waits. Each takes some messages of containerd's, a mebibyte each,
// in PID 1. A machine that takes them slowly leaves the others two.
const (
	mostPulled      = 4
	mostPulledByOne = 2
)

func (a imageAPI) Read(r *api.ReadImageRequest, stream grpc.ServerStreamingServer[api.ReadImageResponse]) error {
	if err := a.forMachine(stream.Context()); err != nil {
		return err
	}
	found, err := a.m.given.Find(stream.Context(), r.Digest)
	if errors.Is(err, fs.ErrNotExist) {
		return status.Error(codes.NotFound, err.Error())
	} else if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	waiting, cancel := context.WithCancel(stream.Context())
	defer context.AfterFunc(a.m.working, cancel)()
	defer cancel()
	leave, err := a.m.pulls.wait(waiting, memberOf(stream.Context()))
	switch {
	case err == nil:
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	default:
		return status.Error(codes.Unavailable, "this machine goes down")
	}
	return a.m.give(stream.Context(), func(ctx context.Context, taken func()) error {
		defer leave()
		blob, err := a.m.given.Open(ctx, found.Digest.String())
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		defer blob.Close()
		for piece := make([]byte, givenChunk); ; taken() {
			n, err := io.ReadFull(blob, piece)
			if n > 0 {
				if err := stream.Send(&api.ReadImageResponse{Chunk: piece[:n]}); err != nil {
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

// hasNeighbours says whether there are machines that images may come from.
func hasNeighbours(c *config.Config) bool {
	return c.Cluster != nil && (worker(c) || len(c.Cluster.Spec.ControlPlanes) > 1)
}

// mirrorLimits are what the mirror holds. containerd fetches three layers of an image at once, and
// has connections of its own for each pull and each registry that it asks through the mirror. Every
// pod with hostNetwork can connect, so a connection that has not shown a token never takes the
// place of one that has.
var mirrorLimits = mirror.Limits{Clients: 256, MaxUnauthenticated: 64, Header: 3 * time.Second, Idle: time.Minute}

// ownMirror is the registry on loopback: of which the machine's containerd gets what other machines
// have, and through which it asks mirrors.
type ownMirror struct {
	url string
	// who does not show it gets nothing: pods of the machine's own network could ask otherwise
	token string
}

// openMirror opens it, the first time that it is asked for. It has one token for what other
// machines have, and one for mirrors, which containerd shows to whoever issues the tokens of a
// mirror, too.
func (m *machine) openMirror() (near, gate ownMirror, err error) {
	if m.mirror.url != "" {
		return m.mirror, m.gate, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return near, gate, fmt.Errorf("images: cannot open the mirror: %w", err)
	}
	at := "http://" + listener.Addr().String()
	m.mirror, m.gate = ownMirror{at, rand.Text()}, ownMirror{at, rand.Text()}
	mirrored := mirror.Proxy(&m.mirrors, m.gate.token, func(registry string, reason error) {
		m.events.add("image", "failure", fmt.Sprintf("the mirror %s %v; the next registry is asked", registry, reason))
	})
	images := mirror.Handler(&neighbours{m: m, own: m.given, resting: map[netip.Addr]time.Time{}}, m.mirror.token)
	both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, mirror.ProxyPath) {
			mirrored.ServeHTTP(w, r)
			return
		}
		images.ServeHTTP(w, r)
	})
	panics.Go("mirror", func() {
		m.events.add("image", "failure", "the mirror has ended: "+mirror.Serve(listener, both, mirrorLimits).Error())
	})
	return m.mirror, m.gate, nil
}

// neighbours are what was imported on this machine, and the other machines of the control plane, as
// a source of images.
type neighbours struct {
	m   *machine
	own mirror.Source // with imagePullPolicy: Always, a pod's image is asked for where it is, too

	mu      sync.Mutex
	resting map[netip.Addr]time.Time // that did not answer, until when they are not asked
}

const (
	// findImageTime bounds asking one machine. Every pull on this machine waits for it, whatever it
	// pulls.
	findImageTime = 5 * time.Second
	// neighbourRests is how long a machine that did not answer is not asked again: a pull asks for
	// each layer by itself.
	neighbourRests = 30 * time.Second
)

// Find asks one after the other, this machine first. It is mirror.Source's.
func (n *neighbours) Find(ctx context.Context, name string) (ocispec.Descriptor, error) {
	if found, err := n.own.Find(ctx, name); err == nil {
		return found, nil
	}
	for _, addr := range n.awake() {
		asking, cancel := context.WithTimeout(ctx, findImageTime)
		found, err := call(asking, n.m, addr, func(other *client.Client) (*api.FindImageResponse, error) {
			return other.Image.Find(asking, &api.FindImageRequest{Name: name})
		})
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			n.rest(addr)
		case found.GetDigest() != "":
			if name != found.Digest {
				n.m.events.add("image", "op", fmt.Sprintf("%s is %s at %s, where it was imported", name, found.Digest, addr))
			}
			return ocispec.Descriptor{Digest: digest.Digest(found.Digest), MediaType: found.MediaType, Size: found.Size}, nil
		}
	}
	return ocispec.Descriptor{}, fs.ErrNotExist
}

// OpenTickets reads a blob from the first of them that has it. It is mirror.Source's.
func (n *neighbours) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if blob, err := n.own.Open(ctx, digest); err == nil {
		return blob, nil
	}
	failed := fs.ErrNotExist
	for _, addr := range n.awake() {
		blob, err := n.open(ctx, addr, digest)
		if err == nil {
			return blob, nil
		}
		failed = fmt.Errorf("machine %s: %s", addr, status.Convert(err).Message())
	}
	return nil, failed
}

// open reads it from one of them, over a connection of its own: who fails with a shared one ends
// it.
func (n *neighbours) open(ctx context.Context, addr netip.Addr, digest string) (io.ReadCloser, error) {
	dialing, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, _, err := n.m.dialOther(dialing, addr)
	if err != nil {
		return nil, err
	}
	stream, err := c.Image.Read(ctx, &api.ReadImageRequest{Digest: digest})
	var first *api.ReadImageResponse
	if err == nil {
		first, err = stream.Recv() // only now it says whether it has it
	}
	if err != nil && !errors.Is(err, io.EOF) { // an empty one ends at once
		_ = c.Close()
		return nil, err
	}
	return giving{&chunks[*api.ReadImageResponse]{receive: stream.Recv, rest: first.GetChunk()}, c.Close}, nil
}

// awake are those to ask.
func (n *neighbours) awake() []netip.Addr {
	now, _ := n.m.config.Get()
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []netip.Addr
	for _, addr := range n.m.teachers(now.config) {
		if time.Now().After(n.resting[addr]) {
			out = append(out, addr)
		}
	}
	return out
}

func (n *neighbours) rest(addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resting[addr] = time.Now().Add(neighbourRests)
}
