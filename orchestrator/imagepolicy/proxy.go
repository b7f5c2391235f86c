package imagepolicy

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/relay"
)

// Name is the component's name.
const Name = "image-policy"

// maxMessage is the kubelet's limit of a message in bytes (k8s.io/cri-client, maxMsgSize).
const maxMessage = 16 << 20

// reconnect has the delays between attempts to connect to containerd after its restart. They are
// the same as those of the kubelet (k8s.io/cri-client, maxBackoffDelay).
var reconnect = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}

// Components returns the component on a node with rules.
func Components(spec nodespec.Spec) []component.Component {
	if len(spec.Node.ImagePolicy) == 0 {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name}}
}

// RuntimeSocket returns the socket at which the kubelet reaches the container runtime.
func RuntimeSocket(spec nodespec.Spec, dirs dirs.Dirs) string {
	if len(spec.Node.ImagePolicy) == 0 {
		return dirs.ContainerdSocket
	}
	return filepath.Join(dirs.Node, "cri.sock")
}

// Run serves the proxy until ctx is done. It listens only when containerd accepts connections,
// because the kubelet waits for the proxy's socket.
func Run(ctx context.Context, env component.Env) error {
	if err := component.AwaitSocket(ctx, env.Dirs.ContainerdSocket); err != nil {
		return nil // stopped before the start
	}
	conn, err := grpc.NewClient("unix://"+env.Dirs.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(relay.NewCodec()), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return fmt.Errorf("containerd: %w", err)
	}
	defer conn.Close()
	listener, err := component.Listen(RuntimeSocket(env.Spec, env.Dirs))
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	server := newServer(conn, &checker{rules: env.Spec.Node.ImagePolicy, store: imagestore.New(conn), pause: env.Spec.Node.PauseImage})
	defer context.AfterFunc(ctx, server.Stop)()
	env.Announce(Name, true, fmt.Sprintf("%d rules", len(env.Spec.Node.ImagePolicy)))
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}

// newServer returns the gRPC server of the proxy; conn is its connection to containerd.
func newServer(conn *grpc.ClientConn, c *checker) *grpc.Server {
	p := &proxy{conn: conn, checker: c}
	return grpc.NewServer(
		grpc.ForceServerCodecV2(relay.NewCodec()), grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
	)
}

// proxy forwards calls of CRI to containerd.
type proxy struct {
	conn    *grpc.ClientConn
	checker *checker
}

// handle checks and forwards the calls to which the policy applies, and forwards every other call
// unchanged.
func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	headers, _ := metadata.FromIncomingContext(down.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(down.Context(), relay.WithoutReserved(headers)))
	defer cancel()
	switch method {
	case cri.RuntimeService_CreateContainer_FullMethodName:
		return p.createContainer(ctx, down)
	case cri.ImageService_PullImage_FullMethodName:
		return p.pullImage(ctx, down)
	}
	up, err := p.conn.NewStream(ctx, &relay.Bidirectional, method)
	if err != nil {
		return err
	}
	return relay.CopyCall("call "+method, down, up, cancel)
}

// createContainer forwards a call if the policy accepts the images of the container.
func (p *proxy) createContainer(ctx context.Context, down grpc.ServerStream) error {
	request := new(cri.CreateContainerRequest)
	if err := down.RecvMsg(request); err != nil {
		return err
	}
	images := []*cri.ImageSpec{request.GetConfig().GetImage()}
	for _, m := range request.GetConfig().GetMounts() {
		if m.GetImage().GetImage() != "" {
			images = append(images, m.Image)
		}
	}
	for _, image := range images {
		if err := p.checkImage(ctx, image); err != nil {
			return err
		}
	}
	answer, err := cri.NewRuntimeServiceClient(p.conn).CreateContainer(ctx, request)
	if err != nil {
		return err
	}
	return down.SendMsg(answer)
}

// checkImage checks an image, and replaces its name by its ID. The name in the pod, which selects
// the rule, must be a name of the image in the store. The reason is that containerd also finds an
// image by a part of its ID: a pod could otherwise use such a part as a name that a rule accepts,
// for an image of another repository.
func (p *proxy) checkImage(ctx context.Context, image *cri.ImageSpec) error {
	name := image.GetUserSpecifiedImage()
	if name == "" {
		name = image.GetImage()
	}
	full, err := fullName(name)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	id, err := p.id(ctx, image)
	if err != nil {
		return err
	}
	if named, err := p.id(ctx, &cri.ImageSpec{Image: full, RuntimeHandler: image.RuntimeHandler, Annotations: image.Annotations}); err != nil {
		return err
	} else if id == "" || named != id {
		return status.Errorf(codes.FailedPrecondition, "image %s: %s is not the name of the image %s on this machine; name the image by its repository, and pull or import it again", name, full, image.GetImage())
	}
	if err := p.checker.check(ctx, full, id); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	image.Image = id
	return nil
}

// id returns the ID of an image in containerd's store; empty if there is none.
func (p *proxy) id(ctx context.Context, image *cri.ImageSpec) (string, error) {
	found, err := cri.NewImageServiceClient(p.conn).ImageStatus(ctx, &cri.ImageStatusRequest{Image: image})
	return found.GetImage().GetId(), err
}

// pullImage forwards a call if a rule accepts the image, and checks the pulled image.
func (p *proxy) pullImage(ctx context.Context, down grpc.ServerStream) error {
	request := new(cri.PullImageRequest)
	if err := down.RecvMsg(request); err != nil {
		return err
	}
	name, err := fullName(request.GetImage().GetImage())
	if err != nil {
		return invalid(err)
	}
	r, err := p.checker.pulled(name)
	if err != nil {
		return invalid(err)
	}
	answer, err := cri.NewImageServiceClient(p.conn).PullImage(ctx, request)
	if err != nil {
		return err
	}
	if err := p.checker.signed(ctx, r, name, answer.ImageRef); err != nil {
		return invalid(err)
	}
	return down.SendMsg(answer)
}

// invalid returns the error by which the kubelet recognizes a missing signature. The kubelet
// recognizes it only with the code Unknown.
func invalid(err error) error {
	return status.Errorf(codes.Unknown, "%v: %v", crierrors.ErrSignatureValidationFailed, err)
}
