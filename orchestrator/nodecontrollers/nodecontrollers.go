// Package nodecontrollers runs the controllers of Kubernetes for which a Node or a pod waits. They
// run in a process of their own, not in kube-controller-manager. kube-controller-manager first
// creates all its controllers in sequence, with some fifty service accounts and tokens, and then
// starts them. This sequence takes most of the time between the start of the API server and the
// first running pod (docs/decisions/0008-early-controllers.md). The code of the controllers is
// upstream's, and each controller has the same identity as in kube-controller-manager.
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

// retryInterval is the delay before a failed request for an identity is repeated.
const retryInterval = 100 * time.Millisecond

// Extracted lists the controllers that run here and not in kube-controller-manager. The names are
// those of the flag --controllers of kube-controller-manager.
var Extracted = []string{"node-ipam-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller"}

// ControllerClient waits until a component of the process "controllers" has its rights. It returns
// two clients: own has the identity of the component and is for watches; acting has the identity of
// the service account and is for changes. If ctx ends first, both clients and the error are nil.
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

// ControllerConfigs does the same as ControllerClient, but returns the configurations of the two
// clients. It is for components that need clients for objects that client-go does not know.
func ControllerConfigs(ctx context.Context, env component.Env, name, account string) (own, acting *rest.Config, err error) {
	who, err := begin(ctx, env, name)
	if who == nil {
		return nil, nil, err
	}
	config := retry(ctx, who, account, who.builder().Config)
	if config == nil {
		return nil, nil, nil
	}
	// The default of client-go, five requests a second, is for interactive use. With it, a thousand
	// PersistentVolumeClaims of one tenant would delay all other claims for minutes.
	config.QPS, config.Burst = 100, 200
	return who.config, config, nil
}

// describe returns a component of this package without its Run function.
func describe(name string, spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, name, nodespec.ControllersCert, nodespec.ControllersKey)
}

// identities makes the clients of a component. As in kube-controller-manager, watches use the
// identity of the process, and the changes of each controller use the identity of a service
// account.
type identities struct {
	name     string // of the component
	announce component.Announce
	config   *rest.Config
	root     kubernetes.Interface
}

// begin waits until a component has its rights, and returns its identities. If ctx ends first, it
// returns nil without an error.
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

// The method of returns a client with the identity of a service account of kube-system. It creates
// the account if it is missing, and repeats requests that the API server rejects. It returns nil
// when ctx is done.
func (i *identities) of(ctx context.Context, account string) kubernetes.Interface {
	return retry(ctx, i, account, i.builder().Client)
}

func (i *identities) builder() clientbuilder.ControllerClientBuilder {
	return clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(i.config), i.root.CoreV1(), metav1.NamespaceSystem)
}

// retry calls ask for a service account until ask succeeds, and returns the result of ask. It
// announces each new error. When ctx is done first, retry returns the zero value.
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
