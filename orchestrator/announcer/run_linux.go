package announcer

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/orlop-os/orlop/orchestrator/neighbour"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "announcer"

// Components describes the component without its Run function. Without pools there is none.
func Components(spec nodespec.Spec, dirs layout.Dirs) []component.Component {
	if len(spec.Pools) == 0 {
		return nil
	}
	config := kubeconfig.NodeFile(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)
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
	return neighbour.WithLinks(ctx, func(ctx context.Context, links <-chan struct{}) error {
		versions := make(chan string)
		go followLease(ctx, asKubelet, spec.NodeName, versions)
		a := newAgent(spec, func(ctx context.Context) (*cluster, error) { return follow(ctx, api, spec.Pools) })
		defer a.ports.Close()
		return a.run(ctx, links, versions, announce)
	})
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
	follow   func(context.Context) (*cluster, error)
	from     *cluster // since the last time that it began to follow
	stop     func()   // ends that
	ports    *neighbour.Ports
	nodes    []Node
	services []Service
	won      []netip.Addr
	links    []neighbour.Link
	claims   claims
	lease    lease
	stale    bool                         // the node was cut off since it began to follow the cluster
	known    bool                         // the cluster was read
	others   map[netip.Addr]neighbour.MAC // who was last heard to speak for an address
}

// newAgent returns an agent that follows the cluster with a function. That it just began to is as good as a Lease.
func newAgent(spec nodespec.Spec, follow func(context.Context) (*cluster, error)) *agent {
	return &agent{spec: spec, follow: follow, ports: neighbour.NewPorts(), lease: lease{seen: time.Now()}, others: map[netip.Addr]neighbour.MAC{}}
}

func (a *agent) run(ctx context.Context, links <-chan struct{}, versions <-chan string, announce component.Announce) error {
	if err := a.followAnew(ctx); err != nil {
		return err
	}
	defer func() { a.stop() }()
	tick := time.NewTicker(apart)
	defer tick.Stop()
	anew := false // the cluster is followed since the node is back
	for told := ""; ; {
		var others []neighbour.Claim
		select {
		case <-a.from.changed:
			if err := a.elect(); err != nil {
				return err
			}
			a.stale = a.stale && !anew
		case <-links:
			if err := a.relink(); err != nil {
				return err
			}
		case version := <-versions:
			a.lease = a.lease.renewed(version, time.Now())
			if a.stale && !anew && !a.lease.cutOff(time.Now()) {
				// A watch may take long to find out that it was cut. What is listed now is from now.
				if err := a.followAnew(ctx); err != nil {
					return err
				}
				anew = true
			}
		case other := <-a.ports.Heard:
			others = append(others, other)
		case f := <-a.ports.Failed:
			klog.Infof("%s: %v", Name, f.Err)
			a.ports.Drop(f)
			continue // another one is opened a moment later: the link may be on its way out
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !a.known {
			continue
		}
		now := time.Now()
		if a.lease.cutOff(now) {
			a.stale, anew = true, false
		}
		detail := a.step(now, others)
		if detail != told && ctx.Err() == nil {
			told = detail
			announce(Name, true, detail)
		}
	}
}

// followAnew begins to follow the cluster, and ends what followed it before.
func (a *agent) followAnew(ctx context.Context) (err error) {
	if a.stop != nil {
		a.stop()
	}
	ctx, a.stop = context.WithCancel(ctx)
	a.from, err = a.follow(ctx)
	return err
}

// elect reads the cluster, and has the election when something is new.
func (a *agent) elect() error {
	nodes, services, err := a.from.read()
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
	links, err := neighbour.ReadLinks()
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(links, a.links) {
		a.links, a.claims = links, a.claims.again()
	}
	return nil
}

// step does what is to be done at this moment, and says how things are.
func (a *agent) step(now time.Time, others []neighbour.Claim) string {
	v := view{now: now, won: a.won, cutOff: a.stale}
	for _, o := range others {
		// Two links of this machine may be in one network, and hear each other.
		if slices.ContainsFunc(a.links, func(l neighbour.Link) bool { return l.MAC == o.By }) {
			continue
		}
		v.claimed = append(v.claimed, o.Address)
		if a.others[o.Address] != o.By {
			a.others[o.Address] = o.By
			klog.Infof("%s: link %s: %s speaks for %s too", Name, o.Link, o.By, o.Address)
		}
	}
	before := a.claims.answered()
	var do doings
	a.claims, do = a.claims.step(v)
	answered := a.claims.answered()
	if !slices.Equal(before, answered) {
		klog.Infof("%s: answers for %v", Name, answered)
	}
	duties := map[netip.Addr]neighbour.Duty{}
	var nowhere []string
	for _, address := range answered {
		on := neighbour.Place(address, a.links, a.spec.NodeIPs)
		if duties[address] = (neighbour.Duty{Role: neighbour.Answer, On: on}); len(on) == 0 {
			nowhere = append(nowhere, address.String())
		}
	}
	err := errors.Join(a.ports.Apply(duties), a.ports.Announce(do.announce), a.ports.Probe(do.probe))
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
