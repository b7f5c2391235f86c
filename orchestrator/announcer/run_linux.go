package announcer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/rtnl"
)

// Name is the component's name.
const Name = "announcer"

// Components describes the component without its Run function. Without pools there is none.
func Components(spec nodespec.Spec, dirs layout.Dirs) []component.Component {
	if len(spec.Pools) == 0 {
		return nil
	}
	config := kubeconfig.File(spec, dirs.Node, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
	return []component.Component{{Process: component.Node, Name: Name, Files: []component.File{config}}}
}

// Run answers for the node's addresses until ctx is done. rights waits until the component may do what it does.
func Run(ctx context.Context, spec nodespec.Spec, dirs layout.Dirs, rights func(context.Context) error, announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
	}
	config, err := clientcmd.BuildConfigFromFlags("", layout.Kubeconfig(dirs.Node, Name))
	if err != nil {
		return fmt.Errorf("cannot use kubeconfig: %w", err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	asKubelet, err := kubeletClient(config, dirs)
	if err != nil {
		return err
	}
	watcher, err := rtnl.Subscribe()
	if err != nil {
		return err
	}
	followed, err := follow(ctx, api, spec.Pools)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	links := make(chan struct{}, 1)
	links <- struct{}{}
	go func() { stop(watcher.Run(ctx, onLinks(links))) }()
	versions := make(chan string)
	go followLease(ctx, asKubelet, spec.NodeName, versions)
	a := &agent{spec: spec, ports: newPorts(), others: map[netip.Addr]mac{}}
	defer a.ports.closeAll()
	if err := a.run(ctx, followed, links, versions, announce); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// kubeletClient speaks as the kubelet, which alone may read the node's Lease.
func kubeletClient(config *rest.Config, dirs layout.Dirs) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.CertFile, config.KeyFile = filepath.Join(dirs.Node, nodespec.KubeletCert), filepath.Join(dirs.Node, nodespec.KubeletKey)
	config.Timeout = looking
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return api, nil
}

// onLinks tells of changes of links and addresses, those of pods' links left out.
func onLinks(changed chan<- struct{}) func(rtnl.Change) {
	return func(c rtnl.Change) {
		if c.Kind == rtnl.RouteChanged || c.LinkKind == "veth" {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// followLease tells the version of the node's Lease again and again, as long as the API server answers.
func followLease(ctx context.Context, api kubernetes.Interface, node string, versions chan<- string) {
	tick := time.NewTicker(looking)
	defer tick.Stop()
	for {
		if l, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{}); err == nil {
			select {
			case versions <- l.ResourceVersion:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// agent is the loop around the election, the claims and the ports.
type agent struct {
	spec     nodespec.Spec
	ports    *ports
	nodes    []Node
	services []Service
	won      []netip.Addr
	links    []Link
	claims   claims
	lease    lease
	known    bool               // the cluster was read
	others   map[netip.Addr]mac // who was last heard to speak for an address
}

func (a *agent) run(ctx context.Context, from *cluster, links <-chan struct{}, versions <-chan string, announce component.Announce) error {
	tick := time.NewTicker(apart)
	defer tick.Stop()
	for told := ""; ; {
		var others []claimed
		select {
		case <-from.changed:
			if err := a.elect(from); err != nil {
				return err
			}
		case <-links:
			if err := a.relink(); err != nil {
				return err
			}
		case version := <-versions:
			a.lease = a.lease.renewed(version, time.Now())
		case other := <-a.ports.heard:
			others = append(others, other)
		case f := <-a.ports.failed:
			klog.Infof("%s: %v", Name, f.err)
			a.ports.drop(f.port)
			continue // another one is opened a moment later: the link may be on its way out
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !a.known {
			continue
		}
		detail := a.step(time.Now(), others)
		if detail != told && ctx.Err() == nil {
			told = detail
			announce(Name, true, detail)
		}
	}
}

// elect reads the cluster, and has the election when something is new.
func (a *agent) elect(from *cluster) error {
	nodes, services, err := from.read()
	if err != nil {
		return err
	}
	if !a.known || !reflect.DeepEqual(nodes, a.nodes) || !reflect.DeepEqual(services, a.services) {
		a.nodes, a.services, a.known = nodes, services, true
		a.won = Elect(a.spec.NodeName, nodes, services)
	}
	return nil
}

// relink reads the links. On links that are others, everything is announced once more.
func (a *agent) relink() error {
	links, err := readLinks()
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(links, a.links) {
		a.links, a.claims = links, a.claims.again()
	}
	return nil
}

// step does what is to be done at this moment, and says how things are.
func (a *agent) step(now time.Time, others []claimed) string {
	v := view{now: now, won: a.won, cutOff: a.lease.cutOff(now)}
	for _, o := range others {
		v.claimed = append(v.claimed, o.address)
		if a.others[o.address] != o.by {
			a.others[o.address] = o.by
			klog.Infof("%s: link %s: %s speaks for %s too", Name, o.link, net.HardwareAddr(o.by[:]), o.address)
		}
	}
	before := a.claims.answered()
	var do doings
	a.claims, do = a.claims.step(v)
	answered := a.claims.answered()
	if !slices.Equal(before, answered) {
		klog.Infof("%s: answers for %v", Name, answered)
	}
	placed := map[netip.Addr][]Link{}
	var nowhere []string
	for _, address := range answered {
		if placed[address] = Place(address, a.links, a.spec.NodeIPs); len(placed[address]) == 0 {
			nowhere = append(nowhere, address.String())
		}
	}
	err := errors.Join(a.ports.apply(placed), a.ports.say(do.announce, (*port).announce), a.ports.say(do.probe, (*port).probe))
	text := fmt.Sprintf("answers for %d of %d addresses", len(answered), len(addresses(a.services)))
	if len(nowhere) > 0 {
		text += "; no link of this machine has a network for " + strings.Join(nowhere, ", ")
	}
	if yielded := len(a.claims) - len(answered); yielded > 0 {
		text += fmt.Sprintf("; cut off from the API server: left %d to others", yielded)
	} else if v.cutOff && len(answered) > 0 {
		text += "; cut off from the API server: looks whether others answer"
	}
	if err != nil {
		text += "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return text
}
