package kubelet

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/server"

	"github.com/orlop-os/orlop/orchestrator/refused"
)

// guard has the kubelet let nobody in whose client certificate counts no more: upstream's own believes each one of the CA until it ends, and asks the API
// server about its holder's name alone. What goes on (exec, logs) ends by itself.
func guard(ctx context.Context, s *options.KubeletServer, parts *kubelet.Dependencies, counts string) error {
	list, err := refused.Open(counts)
	if err != nil {
		return err
	}
	auth, follow, err := app.BuildAuth(types.NodeName(s.HostnameOverride), parts.KubeClient, s.KubeletConfiguration)
	if err != nil {
		return err
	}
	follow(ctx.Done())
	go list.Follow(ctx, func() {})
	parts.Auth = guarded{auth, list}
	return nil
}

// guarded is upstream's, with the guard around who the caller is.
type guarded struct {
	server.AuthInterface
	list *refused.File
}

// AuthenticateRequest implements authenticator.Request.
func (g guarded) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	return g.list.Guard(g.AuthInterface).AuthenticateRequest(request)
}
