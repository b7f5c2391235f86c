// Package nodeipam gives every node its share of the pod range: upstream's controller of that name, beside the controller
// manager instead of inside it.
//
// A node is not Ready before it has its range, and the controller manager makes one controller after the other before it
// starts any: some fifty service accounts and tokens, most of the time between the API server and the node's readiness.
// This one controller needs none of them. It has the identity that it has in the controller manager, the service account
// node-controller.
package nodeipam

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/kubernetes/pkg/controller/nodeipam"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "node-ipam"

// account is the service account that upstream's controller has, in kube-system. Its role is upstream's too.
const account = "node-controller"

// again is how long after a refusal the identity is asked for again.
const again = 100 * time.Millisecond

// Component describes the controller without its Run function.
func Component(spec nodespec.Spec, dirs layout.Dirs) component.Component {
	return component.Component{
		Process: component.Controllers,
		Name:    Name,
		Files:   []component.File{kubeconfig.File(spec, dirs.Controllers, Name, nodespec.ControllersCert, nodespec.ControllersKey)},
	}
}

// Run hands out ranges until ctx is done. rights waits until the component may do what it does.
func Run(ctx context.Context, spec nodespec.Spec, dirs layout.Dirs, rights func(context.Context) error, announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
	}
	path := layout.Kubeconfig(dirs.Controllers, Name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("%s: cannot use: %w", path, err)
	}
	// As in the controller manager: its own identity watches, the service account's changes things.
	root, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	client := identity(ctx, config, root, announce)
	if ctx.Err() != nil {
		return nil
	}
	shared := informers.NewSharedInformerFactory(root, 0)
	pods, services := networks(spec.PodCIDRs), networks(spec.ServiceCIDRs)
	var second *net.IPNet // of the other family
	if len(services) > 1 {
		second = services[1]
	}
	controller, err := nodeipam.NewNodeIpamController(ctx, shared.Core().V1().Nodes(), nil, client, pods, services[0], second,
		masks(spec.PodCIDRs), ipam.RangeAllocatorType)
	if err != nil {
		return fmt.Errorf("cannot make controller: %w", err)
	}
	shared.Start(ctx.Done())
	announce(Name, true, "")
	controller.Run(ctx)
	return nil
}

// identity returns a client that speaks for the service account, or nil when ctx is done. The account is made when
// missing, which the server may refuse for a moment.
func identity(ctx context.Context, config *rest.Config, root kubernetes.Interface, announce component.Announce) kubernetes.Interface {
	builder := clientbuilder.NewDynamicClientBuilder(rest.AnonymousClientConfig(config), root.CoreV1(), metav1.NamespaceSystem)
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for told := ""; ; {
		client, err := builder.Client(account)
		if err == nil {
			return client
		}
		if told != err.Error() {
			told = err.Error()
			announce(Name, false, "service account "+account+": "+told)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func networks(ranges []netip.Prefix) []*net.IPNet {
	var out []*net.IPNet
	for _, r := range ranges {
		out = append(out, &net.IPNet{IP: r.Masked().Addr().AsSlice(), Mask: net.CIDRMask(r.Bits(), r.Addr().BitLen())})
	}
	return out
}

// masks says how large one node's share of each range is: 256 addresses, 2⁶⁴ with IPv6. A range that is not larger than
// that becomes one node's as a whole.
func masks(pods []netip.Prefix) []int {
	var out []int
	for _, p := range pods {
		share := 24
		if p.Addr().Is6() {
			share = 64
		}
		out = append(out, max(share, p.Bits()))
	}
	return out
}
