package kubelet

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/server"

	"github.com/orlop-os/orlop/orchestrator/revocation"
)

// rejectRevoked makes the kubelet reject revoked client certificates. Upstream's authentication
// accepts every certificate of the CA until it expires and asks the API server only for the rights
// of the name in it. Running requests (exec, logs) are not interrupted.
func rejectRevoked(ctx context.Context, s *options.KubeletServer, parts *kubelet.Dependencies, revoked string) error {
	list, err := revocation.Open(revoked, nil)
	if err != nil {
		return err
	}
	auth, watchCA, err := app.BuildAuth(types.NodeName(s.HostnameOverride), parts.KubeClient, s.KubeletConfiguration)
	if err != nil {
		return err
	}
	watchCA(ctx.Done())
	go list.Watch(ctx)
	parts.Auth = server.NewKubeletAuth(list.WrapAuthenticator(auth), auth, auth, auth)
	return nil
}
