// Package nodecontrollers runs those of upstream's controllers for which a node or a pod waits, beside the
// controller manager instead of inside it: the controller manager makes one controller after the
// other before it starts any, some fifty service accounts and tokens, most of the time between the
// API server and a running pod (docs/decisions/0008-early-controllers.md). The controllers are
// unchanged, and each has the identity that it has in the controller manager.
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

// again is how long after a refusal an identity is asked for again.
const again = 100 * time.Millisecond

// Extracted are the controllers of this package, as the controller manager's flag --controllers calls
// them.
var Extracted = []string{"node-ipam-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller"}

// ControllerClient waits until a component of the process "controllers" may do what it does, and returns
// the client that watches for it, its own, and the client of the service account that changes
// things. Without an error both are nil when ctx was done before.
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

// ControllerConfigs is Identity for a component that needs other clients than that of upstream's own kinds.
func ControllerConfigs(ctx context.Context, name, account string, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) (own, acting *rest.Config, err error) {
	who, err := begin(ctx, name, dirs, rights, announce)
	if who == nil {
		return nil, nil, err
	}
	config := asked(ctx, who, account, who.builder().Config)
	if config == nil {
		return nil, nil, nil
	}
	// client-go's five requests a second are for people; with them, one tenant's thousand claims
	// would hold up everybody's for minutes.
	config.QPS, config.Burst = 100, 200
	return who.config, config, nil
}

// describe is a component of this package without its Run function.
func describe(name string, spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return component.Component{
		Process: component.Controllers,
		Name:    name,
		Files:   []component.File{kubeconfig.ControllersFile(spec, dirs, name, nodespec.ControllersCert, nodespec.ControllersKey)},
	}
}

// identities are the clients of one component. As in the controller manager its own identity
// watches, and the service account of each controller changes things.
type identities struct {
	name     string // the component's
	announce component.Announce
	config   *rest.Config
	root     kubernetes.Interface
}

// begin waits until a component may do what it does, and returns its identities; nil when it was
// asked to stop before.
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

// of returns a client that speaks for a service account of kube-system, or nil when ctx is done.
// The account is made when missing, which the server may refuse for a moment.
func (i *identities) of(ctx context.Context, account string) kubernetes.Interface {
	return asked(ctx, i, account, i.builder().Client)
}

func (i *identities) builder() clientbuilder.ControllerClientBuilder {
	return clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(i.config), i.root.CoreV1(), metav1.NamespaceSystem)
}

// asked asks for what belongs to a service account until there is an answer; the zero value when
// ctx is done before.
func asked[T any](ctx context.Context, i *identities, account string, ask func(account string) (T, error)) T {
	ticker := time.NewTicker(again)
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
