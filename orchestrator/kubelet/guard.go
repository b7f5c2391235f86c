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

// guard has the kubelet let nobody in whose client certificate counts no more: upstream's own
// believes each one of the CA until it ends, and asks the API server about its holder's name alone.
// What goes on (exec, logs) ends by itself.
func guard(ctx context.Context, s *options.KubeletServer, parts *kubelet.Dependencies, counts string) error {
	list, err := revocation.Open(counts, nil)
	if err != nil {
		return err
	}
	auth, follow, err := app.BuildAuth(types.NodeName(s.HostnameOverride), parts.KubeClient, s.KubeletConfiguration)
	if err != nil {
		return err
	}
	follow(ctx.Done())
	go list.Watch(ctx)
	parts.Auth = server.NewKubeletAuth(list.WrapAuthenticator(auth), auth, auth, auth)
	return nil
}
