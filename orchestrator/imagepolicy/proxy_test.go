package imagepolicy

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// runtime is a fake of containerd's CRI plugin. ids has the IDs of its images by name.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer
	ids     map[string]string
	created *cri.CreateContainerRequest // the last request
	pulled  []string
}

// ImageStatus also finds images by a part of their ID, as containerd does.
func (r *runtime) ImageStatus(_ context.Context, q *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	for name, id := range r.ids {
		if q.Image.Image == name || strings.HasPrefix(id, q.Image.Image) {
			return &cri.ImageStatusResponse{Image: &cri.Image{Id: id}}, nil
		}
	}
	return &cri.ImageStatusResponse{}, nil
}

func (r *runtime) CreateContainer(_ context.Context, q *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	r.created = q
	return &cri.CreateContainerResponse{ContainerId: "c"}, nil
}

func (r *runtime) PullImage(_ context.Context, q *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	r.pulled = append(r.pulled, q.Image.Image)
	r.ids[q.Image.Image] = id
	return &cri.PullImageResponse{ImageRef: id}, nil
}

func (r *runtime) Version(ctx context.Context, q *cri.VersionRequest) (*cri.VersionResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &cri.VersionResponse{RuntimeName: q.Version + strings.Join(md.Get("traceparent"), "")}, nil
}

func (r *runtime) GetContainerEvents(_ *cri.GetEventsRequest, out cri.RuntimeService_GetContainerEventsServer) error {
	for _, id := range []string{"a", "b"} {
		if err := out.Send(&cri.ContainerEventResponse{ContainerId: id}); err != nil {
			return err
		}
	}
	return status.Error(codes.Aborted, "the end")
}

// started returns a fake runtime, and a client connection to a proxy with these rules for this
// runtime.
func started(t *testing.T, rules ...config.ImageRule) (*runtime, *grpc.ClientConn) {
	t.Helper()
	spec := nodespec.Spec{Node: nodespec.Node{ImagePolicy: rules, PauseImage: "orlop.dev/pause:1"}}
	dirs := dirs.In(t.TempDir())
	dirs.Node = t.TempDir()
	dirs.ContainerdSocket = filepath.Join(dirs.Node, "containerd.sock")
	r := &runtime{ids: map[string]string{name: id, "registry.example.com/free:1": another}}
	below := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(below, r)
	cri.RegisterImageServiceServer(below, r)
	l, err := net.Listen("unix", dirs.ContainerdSocket)
	if err != nil {
		t.Fatal(err)
	}
	go below.Serve(l)
	t.Cleanup(below.Stop)
	ctx, cancel := context.WithCancel(t.Context())
	ended, ready := make(chan error, 1), make(chan bool, 1)
	go func() {
		ended <- Run(ctx, component.Env{Spec: spec, Dirs: dirs, Announce: func(string, bool, string) { ready <- true }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
		t.Fatal("the proxy does not start")
	}
	conn, err := grpc.NewClient("unix://"+RuntimeSocket(spec, dirs), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return r, conn
}

// TestForward checks that the proxy forwards calls without an image unchanged, with their headers,
// streams and errors.
func TestForward(t *testing.T) {
	_, conn := started(t, config.ImageRule{Images: []config.RepositoryPattern{"*"}, Unsigned: true})
	client := cri.NewRuntimeServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "x")
	if v, err := client.Version(ctx, &cri.VersionRequest{Version: "v"}); err != nil || v.RuntimeName != "vx" {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := client.Status(ctx, &cri.StatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an error of the runtime: %v", err)
	}
	stream, err := client.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for err == nil {
		var event *cri.ContainerEventResponse
		if event, err = stream.Recv(); err == nil {
			got = append(got, event.ContainerId)
		}
	}
	if !slices.Equal(got, []string{"a", "b"}) || status.Code(err) != codes.Aborted {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCreateContainer checks that a container starts only if a rule accepts its image. The name in
// the pod must be a name of the image. The runtime gets the ID that was checked.
func TestCreateContainer(t *testing.T) {
	r, conn := started(t, config.ImageRule{Images: []config.RepositoryPattern{"registry.example.com/free", "docker.io/*"}, Unsigned: true})
	client := cri.NewRuntimeServiceClient(conn)
	spec := func(image, name string) *cri.ImageSpec {
		return &cri.ImageSpec{Image: image, UserSpecifiedImage: name}
	}
	const free = "registry.example.com/free:1"
	for _, c := range []struct {
		title  string
		image  *cri.ImageSpec
		volume *cri.ImageSpec
		want   string // a part of the error; empty if the container starts
	}{
		{"an accepted image", spec(another, free), nil, ""},
		{"an accepted image by its name", spec(free, ""), nil, ""},
		{"with an image volume", spec(another, free), spec(another, free), ""},
		{"no rule", spec(id, name), nil, "no rule of Machine.spec.node.imagePolicy matches " + repository},
		{"an image volume without a rule", spec(another, free), spec(id, name), "no rule of Machine.spec.node.imagePolicy matches " + repository},
		{"another image under an accepted name", spec(id, free), nil, "is not the name of the image " + id},
		{"an ID as the name", spec(id, id), nil, "name the image by its repository"},
		{"a part of an ID as the name", spec(id, id[:20]), nil, "name the image by its repository"},
		{"only an ID", spec(id, ""), nil, "name the image by its repository"},
		{"a name of which the machine has no image", spec(another, "docker.io/library/nginx"), nil, "docker.io/library/nginx:latest is not the name of the image"},
		{"a deleted image", spec("registry.example.com/free:2", ""), nil, "pull or import it again"},
		{"no image", nil, nil, "not the name of an image"},
	} {
		r.created = nil
		request := &cri.CreateContainerRequest{PodSandboxId: "s", Config: &cri.ContainerConfig{Image: c.image, Mounts: []*cri.Mount{{ContainerPath: "/x"}}}}
		if c.volume != nil {
			request.Config.Mounts = append(request.Config.Mounts, &cri.Mount{Image: c.volume})
		}
		_, err := client.CreateContainer(t.Context(), request)
		switch {
		case c.want != "" && (status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), c.want) || r.created != nil):
			t.Errorf("%s: %v; want %s; created %v", c.title, err, c.want, r.created)
		case c.want == "" && (err != nil || r.created.Config.Image.Image != another || r.created.PodSandboxId != "s"):
			t.Errorf("%s: %v; created %v", c.title, err, r.created)
		case c.want == "" && c.volume != nil && r.created.Config.Mounts[1].Image.Image != another:
			t.Errorf("%s: created %v", c.title, r.created)
		}
	}
}

// TestPullImage checks that an image without a rule is not pulled, and that a pull without an
// accepted signature fails in the form that the kubelet reports as SignatureValidationFailed.
func TestPullImage(t *testing.T) {
	key := newKey()
	r, conn := started(t, config.ImageRule{Images: []config.RepositoryPattern{"registry.example.com/free"}, Unsigned: true},
		config.ImageRule{Images: []config.RepositoryPattern{"registry.example.com/*", "orlop.dev/*"}, Keys: []config.ImageKey{key.public}})
	client := cri.NewImageServiceClient(conn)
	for _, c := range []struct {
		image, want string
		pulled      bool
	}{
		{"registry.example.com/free:2", "", true},
		{"docker.io/library/nginx:1", "SignatureValidationFailed: image docker.io/library/nginx:1: no rule of Machine.spec.node.imagePolicy matches", false},
		{"orlop.dev/pause:1", "SignatureValidationFailed: image orlop.dev/pause:1: the name belongs to the system", false},
		// The fake runtime has no store of images, so no signature can be read.
		{name, "SignatureValidationFailed: image " + name + ": cannot check its signatures", true},
	} {
		r.pulled = nil
		_, err := client.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: c.image}})
		if s := status.Convert(err); (err == nil) != (c.want == "") || !strings.HasPrefix(s.Message(), c.want) || err != nil && s.Code() != codes.Unknown {
			t.Errorf("%s: %v; want %s", c.image, err, c.want)
		}
		if (len(r.pulled) == 1) != c.pulled {
			t.Errorf("%s: pulled %q", c.image, r.pulled)
		}
	}
}

// TestRuntimeSocket checks that, without rules, the kubelet connects to containerd directly.
func TestRuntimeSocket(t *testing.T) {
	var spec nodespec.Spec
	if got, want := RuntimeSocket(spec, dirs.System()), dirs.System().ContainerdSocket; got != want || Components(spec) != nil {
		t.Errorf("%s, %v", got, Components(spec))
	}
	spec.Node.ImagePolicy = []config.ImageRule{{Unsigned: true}}
	if got := RuntimeSocket(spec, dirs.System()); got == dirs.System().ContainerdSocket || len(Components(spec)) != 1 {
		t.Errorf("%s, %v", got, Components(spec))
	}
}
