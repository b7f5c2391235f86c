// Package nodecontrollers runs upstream's controllers for which a node or a pod waits, beside the
// controller manager instead of inside it. The controller manager creates all its controllers in
// sequence before it starts any of them, with some fifty service accounts and tokens; this is most
// of the time between the API server's start and a running pod
// (docs/decisions/0008-early-controllers.md). The controllers are unchanged, and each has the same
// identity as in the controller manager.
package nodecontrollers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// retryInterval is the delay before a rejected request for an identity is repeated.
const retryInterval = 100 * time.Millisecond

// Extracted lists the controllers that run here instead of in kube-controller-manager, with the
// names of its flag --controllers.
var Extracted = []string{"node-ipam-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller"}

// ControllerClient waits until a component of the process "controllers" has its rights. It returns
// the client of the component's own identity for watches, and the client of the service account for
// changes. If ctx ends first, both are nil without an error.
func ControllerClient(ctx context.Context, env component.Env, name, account string) (own, acting kubernetes.Interface, err error) {
	watches, acts, err := ControllerConfigs(ctx, env, name, account)
	if watches == nil {
		return nil, nil, err
	}
	if own, err = component.NewClient(watches); err != nil {
		return nil, nil, err
	}
	if acting, err = component.NewClient(acts); err != nil {
		return nil, nil, err
	}
	return own, acting, nil
}

// ControllerConfigs is ControllerClient for a component that needs clients for other kinds than
// upstream's.
func ControllerConfigs(ctx context.Context, env component.Env, name, account string) (own, acting *rest.Config, err error) {
	who, err := begin(ctx, env, name)
	if who == nil {
		return nil, nil, err
	}
	config := retry(ctx, who, account, who.builder().Config)
	if config == nil {
		return nil, nil, nil
	}
	// client-go's default of five requests a second is meant for interactive use; with it, a
	// thousand claims of one tenant would delay all other claims for minutes.
	config.QPS, config.Burst = 100, 200
	return who.config, config, nil
}

// describe returns a component of this package without its Run function.
func describe(name string, spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// identities holds the clients of a component. As in the controller manager, its own identity
// watches, and the service account of each controller makes changes.
type identities struct {
	name     string // name of the component
	announce component.Announce
	config   *rest.Config
	root     kubernetes.Interface
}

// begin waits until a component has its rights and returns its identities, or nil if ctx ends
// first.
func begin(ctx context.Context, env component.Env, name string) (*identities, error) {
	config, err := env.WaitConfig(ctx, name)
	if config == nil {
		return nil, err
	}
	root, err := component.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &identities{name: name, announce: env.Announce, config: config, root: root}, nil
}

// of returns a client with the identity of a service account of kube-system, or nil when ctx is
// done. It creates a missing account, which the server may reject for a moment.
func (i *identities) of(ctx context.Context, account string) kubernetes.Interface {
	return retry(ctx, i, account, i.builder().Client)
}

func (i *identities) builder() clientbuilder.ControllerClientBuilder {
	return clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(i.config), i.root.CoreV1(), metav1.NamespaceSystem)
}

// retry calls get for a service account until it succeeds. It returns the zero value when ctx is
// done first.
func retry[T any](ctx context.Context, i *identities, account string, ask func(account string) (T, error)) T {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for told := ""; ; {
		answer, err := ask(account)
		if err == nil {
			return answer
		}
		if told != err.Error() {
			told = err.Error()
			i.announce(i.name, false, "service account "+account+": "+told)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			var none T
			return none
		}
	}
}
