// Package nodecontrollers runs upstream's controllers for which a node or a pod waits, beside the
// controller manager instead of inside it. The controller manager creates all its controllers in
// sequence before it starts any of them, with some fifty service accounts and tokens; this is most
// of the time between the API server's start and a running pod
// (docs/decisions/0008-early-controllers.md). The controllers are unchanged, and each has the same
// identity as in the controller manager.
package nodecontrollers

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
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
func ControllerClient(ctx context.Context, name, account string, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) (own, acting kubernetes.Interface, err error) {
	watches, acts, err := ControllerConfigs(ctx, name, account, dirs, rights, announce)
	if watches == nil {
		return nil, nil, err
	}
	reads, err := kubernetes.NewForConfig(watches)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make client: %w", err)
	}
	writes, err := kubernetes.NewForConfig(acts)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make client: %w", err)
	}
	return reads, writes, nil
}

// ControllerConfigs is ControllerClient for a component that needs clients for other kinds than
// upstream's.
func ControllerConfigs(ctx context.Context, name, account string, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) (own, acting *rest.Config, err error) {
	who, err := begin(ctx, name, dirs, rights, announce)
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
	return component.Component{
		Process: component.Controllers,
		Name:    name,
		Files:   []component.File{kubeconfig.ControllersFile(spec, dirs, name, nodespec.ControllersCert, nodespec.ControllersKey)},
	}
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
func begin(ctx context.Context, name string, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) (*identities, error) {
	announce(name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil, nil
	}
	path := kubeconfig.Path(dirs.Controllers, name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use: %w", path, err)
	}
	root, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return &identities{name: name, announce: announce, config: config, root: root}, nil
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
