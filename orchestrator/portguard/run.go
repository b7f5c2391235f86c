package portguard

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the component's name.
const Name = "port-guard"

const (
	// minInterval is the shortest time between two updates of the table. An update combines all
	// changes since the previous update.
	minInterval = 200 * time.Millisecond
	// resyncPeriod is the period at which the table is written again, so a manual change in the
	// kernel does not last longer than that. retryInterval is the delay after a failure.
	resyncPeriod, retryInterval = time.Minute, 2 * time.Second
	// publishRetry is the delay after a failed publication of the machine's addresses.
	publishRetry = 30 * time.Second
	// timeout bounds a run of nft(8).
	timeout = 30 * time.Second
)

// Component describes the component without its Run function. The component uses the identity of
// the node's agent at the API server.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
}

// Run maintains the table until ctx is done. The table stays in the kernel afterwards. The first
// table has the addresses in the description of the node (env.Spec). Run calls the function loaded
// when the kernel has this table.
func Run(ctx context.Context, env component.Env, loaded func()) error {
	config, err := env.Config(Name)
	if err != nil {
		return err
	}
	api, err := component.NewClient(config)
	if err != nil {
		return err
	}
	f, err := newWatcher(api, env.Spec, env.Nodes)
	if err != nil {
		return err
	}
	publish, err := asKubelet(config, env)
	if err != nil {
		return err
	}
	go func() {
		if env.Rights(ctx) == nil {
			f.start(ctx)
			f.publishLoop(ctx, links, publish)
		}
	}()
	k := &applier{write: nft, announce: env.Announce, loaded: sync.OnceFunc(loaded)}
	k.run(ctx, f.changed, f.input)
	return nil
}

// asKubelet returns a function that writes the annotation with the machine's addresses to its Node.
// The function uses the identity of the kubelet, because no other identity of the node may change
// the Node.
func asKubelet(config *rest.Config, env component.Env) (func(ctx context.Context, text string) error, error) {
	api, err := component.KubeletClient(config, env.Dirs, 10*time.Second)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, text string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, nodespec.AddressesAnnotation, text)
		_, err := api.CoreV1().Nodes().Patch(ctx, env.Spec.Node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}, nil
}

// links returns the addresses of all links of the machine.
func links() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("links: cannot be read: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip)
			}
		}
	}
	return out, nil
}

// publishLoop publishes the machine's addresses on its Node until ctx is done. The other nodes read
// them there. publishLoop repeats the check every retryInterval until the Node has the addresses,
// and every resyncPeriod afterwards. After an error, it repeats the check after publishRetry.
func (f *watcher) publishLoop(ctx context.Context, links func() ([]netip.Addr, error), publish func(ctx context.Context, text string) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		rest := resyncPeriod
		if done, err := f.publishOnce(ctx, links, publish); err != nil {
			klog.Errorf("%s: cannot publish the machine's addresses on its Node: %v", Name, err)
			rest = publishRetry
		} else if !done {
			rest = retryInterval
		}
		timer.Reset(rest)
	}
}

// publishOnce publishes the addresses if they differ from those of the Node. It returns true if the
// Node already had them.
func (f *watcher) publishOnce(ctx context.Context, links func() ([]netip.Addr, error), publish func(ctx context.Context, text string) error) (bool, error) {
	own, err := links()
	if err != nil {
		return false, err
	}
	object, found, err := f.nodes.GetStore().GetByKey(f.spec.Node.Name)
	node, ok := object.(*corev1.Node)
	if err != nil || !found || !ok {
		return false, err // the Node is not registered yet
	}
	text := nodespec.Published(own, f.spec.Network.PodCIDRs)
	if node.Annotations[nodespec.AddressesAnnotation] == text {
		return true, nil
	}
	return false, publish(ctx, text)
}

// nft runs commands with nft(8), in one transaction.
func nft(ctx context.Context, commands string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	command := exec.CommandContext(ctx, paths.Nft, "-f", "-")
	command.Stdin = strings.NewReader(commands)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nftables table %s: cannot set: %w: %s", Table, err, bytes.TrimSpace(out))
	}
	return nil
}

// watcher watches the Nodes and, if necessary, the Pods of this node.
type watcher struct {
	spec  nodespec.Spec
	start func(context.Context)
	nodes cache.SharedIndexInformer
	// It is nil if the access to kubelets does not depend on the namespaces of pods.
	pods    cache.SharedIndexInformer
	changed cell.Signal
}

func newWatcher(api kubernetes.Interface, spec nodespec.Spec, nodes *component.Nodes) (*watcher, error) {
	everywhere, err := nodes.Informer()
	if err != nil {
		return nil, err
	}
	f := &watcher{spec: spec, changed: cell.NewSignal(), nodes: everywhere}
	here := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTransform(trim), component.Only("spec.nodeName", spec.Node.Name))
	// A Node changes every few seconds, but its addresses change rarely.
	same := func(before, now any) bool { return slices.Equal(addressesOf(before), addressesOf(now)) }
	watched := []component.Watched{{Informer: f.nodes, Same: same}}
	if spec.Kubernetes.Kubelet.ClosedToPods && len(spec.Kubernetes.Kubelet.OpenToNamespaces) > 0 {
		f.pods = here.Core().V1().Pods().Informer()
		watched = append(watched, component.Watched{Informer: f.pods, Same: same})
	}
	if err := component.Watch(f.changed.Wake, watched...); err != nil {
		return nil, err
	}
	f.start = func(ctx context.Context) {
		nodes.Start(ctx.Done())
		here.Start(ctx.Done())
		if cache.WaitForCacheSync(ctx.Done(), f.nodes.HasSynced) {
			f.changed.Wake()
		}
	}
	return f, nil
}

// input returns the current input. known is false until the informer has all Nodes.
func (f *watcher) input() (w Input, known bool) {
	w = Input{Machines: slices.Concat(f.spec.Node.IPs, f.spec.ControlPlanes, f.spec.VirtualAddresses), Pods: f.spec.Network.PodCIDRs, Kubelet: f.spec.Kubernetes.Kubelet}
	for _, o := range f.nodes.GetStore().List() {
		w.Machines = append(w.Machines, addressesOf(o)...)
	}
	if f.pods != nil {
		for _, o := range f.pods.GetStore().List() {
			if p, ok := o.(*corev1.Pod); ok && slices.Contains(f.spec.Kubernetes.Kubelet.OpenToNamespaces, p.Namespace) {
				w.Readers = append(w.Readers, addressesOf(p)...)
			}
		}
	}
	return w, f.nodes.HasSynced()
}

// trim removes the fields of a Pod that addressesOf and input do not read.
func trim(object any) (any, error) {
	if o, ok := object.(*corev1.Pod); ok {
		return &corev1.Pod{ObjectMeta: component.Trimmed(o), Spec: corev1.PodSpec{HostNetwork: o.Spec.HostNetwork}, Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs}}, nil
	}
	return object, nil
}

// addressesOf returns the addresses of a Node, from its status and its annotation. For a Pod in the
// pod network that has not ended, it returns the addresses of the Pod.
func addressesOf(object any) []netip.Addr {
	var texts []string
	var out []netip.Addr
	switch o := object.(type) {
	case *corev1.Node:
		out = nodespec.ReadPublished(o.Annotations[nodespec.AddressesAnnotation])
		for _, a := range o.Status.Addresses {
			texts = append(texts, a.Address)
		}
	case *corev1.Pod:
		if o.Spec.HostNetwork || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
			return nil
		}
		for _, ip := range o.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// applier writes the table for the input to the kernel.
type applier struct {
	write    func(ctx context.Context, commands string) error
	announce component.Announce
	loaded   func() // called after each successful write

	have string // the commands of the last table that was written
	// the last announced status
	announced string
}

// run calls step until ctx is done: after a change, every resyncPeriod, and after a failure.
func (k *applier) run(ctx context.Context, changed <-chan struct{}, world func() (Input, bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for last := (time.Time{}); ; {
		again := false
		select {
		case <-changed:
			if wait := minInterval - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
			again = true
		case <-ctx.Done():
			return
		}
		last = time.Now()
		w, known := world()
		rest := resyncPeriod
		detail, err := k.step(ctx, w, again)
		if err != nil {
			rest, detail = retryInterval, err.Error()
		}
		timer.Reset(rest)
		ready := err == nil && known
		if err == nil && !known {
			detail += "; the Nodes are not known yet"
		}
		if now := fmt.Sprint(ready, detail); now != k.announced && ctx.Err() == nil {
			k.announce(Name, ready, detail)
			k.announced = now
		}
	}
}

// step writes the table if it differs from the last table. If the parameter again is true, it
// writes the table in any case, because another program may have removed the table. It returns the
// status text.
func (k *applier) step(ctx context.Context, w Input, again bool) (string, error) {
	commands := w.Commands()
	if commands != k.have || again {
		if err := k.write(ctx, commands); err != nil {
			k.have = ""
			return "", err
		}
		k.have = commands
		k.loaded()
	}
	machines := slices.Clone(w.Machines)
	slices.SortFunc(machines, netip.Addr.Compare)
	return fmt.Sprintf("protects the ports of machines at %d addresses from pods", len(slices.Compact(machines))), nil
}
