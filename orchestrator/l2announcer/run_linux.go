package l2announcer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "l2-announcer"

// Components describes the component without its Run function. The list is empty without pools that
// are announced on the link.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if len(nodespec.AnnouncedBy(false, spec.Network.Pools)) == 0 {
		return nil
	}
	return []component.Component{kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)}
}

// Run answers for the node's addresses until ctx is done.
func Run(ctx context.Context, env component.Env) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	api, err := component.NewClient(config)
	if err != nil {
		return err
	}
	asKubelet, err := component.KubeletClient(config, env.Dirs, pollInterval)
	if err != nil {
		return err
	}
	return neighbor.WithLinks(ctx, func(ctx context.Context, links <-chan struct{}) error {
		versions := make(chan leaseVersion)
		go pollLease(ctx, asKubelet, env.Spec.Node.Name, versions)
		a := newAgent(env.Spec, func(ctx context.Context) (*Cluster, error) {
			return Watch(ctx, api, nodespec.AnnouncedBy(false, env.Spec.Network.Pools))
		})
		defer a.ports.Close()
		return a.run(ctx, links, versions, env.Announce)
	})
}

// pollLease sends the version of the node's Lease repeatedly, as long as the API server answers.
func pollLease(ctx context.Context, api kubernetes.Interface, node string, versions chan<- leaseVersion) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		at := time.Now()
		if l, err := api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{}); err == nil {
			select {
			case versions <- leaseVersion{l.ResourceVersion, at}:
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

// leaseVersion is an answer of the API server about the Lease, with the time of the request: the
// answer was true then at the earliest.
type leaseVersion struct {
	version string
	at      time.Time
}

// maxHeard bounds the claims that are stored between two steps, and a repeated claim is logged only
// once in defendInterval: every machine on the link can send claims.
const maxHeard = 256

// agent is the loop around the election, the claims and the ports.
type agent struct {
	state
	spec      nodespec.Spec
	watch     func(context.Context) (*Cluster, error)
	from      *Cluster // current watch of the cluster
	stop      func()   // ends the watch
	ports     *neighbor.Sockets
	nodes     []Node
	services  []Service
	links     []neighbor.Link
	heard     []neighbor.SeenAddress // since the last step
	lease     lease
	stale     bool                    // the node was cut off since the watch began
	known     bool                    // the cluster was read
	conflicts map[netip.Addr]conflict // the last logged claim of each address
}

// conflict is a claim of another machine for an address.
type conflict struct {
	by       neighbor.MAC
	loggedAt time.Time
}

// newAgent returns an agent that watches the cluster by means of the given function. The start of
// the watch counts as a renewal of the Lease.
func newAgent(spec nodespec.Spec, follow func(context.Context) (*Cluster, error)) *agent {
	return &agent{spec: spec, watch: follow, ports: neighbor.NewSockets(), lease: lease{seen: time.Now()}, conflicts: map[netip.Addr]conflict{}}
}

func (a *agent) run(ctx context.Context, links <-chan struct{}, versions <-chan leaseVersion, announce component.Announce) error {
	if err := a.restartWatch(ctx); err != nil {
		return err
	}
	defer func() { a.stop() }()
	tick := time.NewTicker(neighbor.StepInterval)
	defer tick.Stop()
	restarted := false // the watch restarted since the node is back
	for told := ""; ; {
		select {
		case <-a.from.Changed:
			if err := a.read(); err != nil {
				return err
			}
			a.stale = a.stale && !restarted
		case <-links:
			if err := a.relink(); err != nil {
				return err
			}
		case answer := <-versions:
			a.lease = a.lease.renewed(answer.version, answer.at)
			if a.stale && !restarted && !a.lease.cutOff(time.Now()) {
				// A watch may detect its broken connection late. A new list is current.
				if err := a.restartWatch(ctx); err != nil {
					return err
				}
				restarted = true
			}
		case other := <-a.ports.Heard:
			// before the first list, claims are ignored
			if a.known && len(a.heard) < maxHeard && !slices.Contains(a.heard, other) {
				a.heard = append(a.heard, other)
			}
			continue
		case f := <-a.ports.Failed:
			klog.Infof("%s: %v", Name, f.Err)
			a.ports.Drop(f)
			continue // Apply opens another port in a moment: the link may be about to disappear
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if !a.known {
			continue
		}
		now := time.Now()
		if a.lease.cutOff(now) {
			a.stale, restarted = true, false
		}
		detail := a.step(now)
		if detail != told && ctx.Err() == nil {
			told = detail
			announce(Name, true, detail)
		}
	}
}

// restartWatch begins a new watch of the cluster and ends the previous watch.
func (a *agent) restartWatch(ctx context.Context) (err error) {
	if a.stop != nil {
		a.stop()
	}
	ctx, a.stop = context.WithCancel(ctx)
	a.from, err = a.watch(ctx)
	return err
}

// read reads the cluster.
func (a *agent) read() error {
	nodes, services, err := a.from.Read()
	if err != nil {
		return err
	}
	if !a.known || !reflect.DeepEqual(services, a.services) {
		a.candidates = nil // another election is due
	}
	a.nodes, a.services, a.known = nodes, services, true
	return nil
}

// relink reads the links. After a change of the links, the node announces all addresses again and
// resets its peers: it did not hear them while its link was down, so they are not silent.
func (a *agent) relink() error {
	links, err := neighbor.ReadLinks()
	if err != nil {
		return err
	}
	if reflect.DeepEqual(links, a.links) {
		return nil
	}
	before := a.ownLinks()
	a.links, a.claims = links, a.claims.reannounce()
	// addresses come and go
	same := func(x, y neighbor.Link) bool { return x.Index == y.Index && x.MAC == y.MAC }
	if !slices.EqualFunc(before, a.ownLinks(), same) {
		a.peers = peerState{}
	}
	return nil
}

// own returns the address with which the node announces itself. Some tests do not set it.
func (a *agent) own() netip.Addr {
	if len(a.spec.Node.IPs) == 0 {
		return netip.Addr{}
	}
	return a.spec.Node.IPs[0]
}

// ownLinks returns the links on which the node announces itself. Without these links it hears no
// peers and relies on the API server.
func (a *agent) ownLinks() []neighbor.Link {
	return neighbor.Place(a.own(), a.links, a.spec.Node.IPs)
}

// listenModes returns the modes by which the node hears the other nodes and announces itself.
func (a *agent) listenModes() map[netip.Addr]neighbor.Mode {
	duties := map[netip.Addr]neighbor.Mode{}
	for _, n := range a.nodes {
		for _, address := range n.Addresses {
			duties[address] = neighbor.Mode{Role: neighbor.Listen, Links: neighbor.Place(address, a.links, a.spec.Node.IPs)}
		}
	}
	duties[a.own()] = neighbor.Mode{Role: neighbor.Present, Links: a.ownLinks()}
	return duties
}

// step performs the actions of this moment and returns the status text.
func (a *agent) step(now time.Time) string {
	// Two links of this machine may be in one network and hear each other.
	heard := slices.DeleteFunc(a.heard, func(c neighbor.SeenAddress) bool {
		return slices.ContainsFunc(a.links, func(l neighbor.Link) bool { return l.MAC == c.MAC })
	})
	a.heard = nil
	before := a.claims.answered()
	var do actions
	a.state, do = a.state.step(observation{
		now: now, self: a.spec.Node.Name, nodes: a.nodes, services: a.services, heard: heard, noLink: len(a.ownLinks()) == 0, cutOff: a.stale,
	})
	for _, c := range heard {
		if last := a.conflicts[c.Address]; slices.Contains(a.won, c.Address) && last.by != c.MAC && now.Sub(last.loggedAt) >= defendInterval {
			a.conflicts[c.Address] = conflict{c.MAC, now}
			klog.Infof("%s: link %s: %s claims %s too", Name, c.Link, c.MAC, c.Address)
		}
	}
	answered := a.claims.answered()
	if !slices.Equal(before, answered) {
		klog.Infof("%s: answers for %v", Name, answered)
	}
	duties := a.listenModes()
	var nowhere []string
	for _, address := range a.won {
		duty := neighbor.Mode{Role: neighbor.Listen, Links: neighbor.Place(address, a.links, a.spec.Node.IPs)}
		if a.claims[address].yielded.IsZero() {
			duty.Role = neighbor.Answer
			if len(duty.Links) == 0 {
				nowhere = append(nowhere, address.String())
			}
		}
		duties[address] = duty
	}
	if do.announceSelf {
		do.announce = append([]netip.Addr{a.own()}, do.announce...)
	}
	err := errors.Join(a.ports.Apply(duties), a.ports.Announce(do.announce), a.ports.Probe(do.probe), a.ports.Solicit(do.solicit, a.links))
	text := fmt.Sprintf("answers for %d of %d addresses", len(answered), len(addresses(a.services)))
	if len(nowhere) > 0 {
		text += "; no link of this machine has a network for " + strings.Join(nowhere, ", ")
	}
	if len(do.silent) > 0 {
		text += "; no packets from " + strings.Join(do.silent, ", ")
	}
	if yielded := len(a.claims) - len(answered); yielded > 0 {
		text += fmt.Sprintf("; cut off from the API server: yielded %d to other nodes", yielded)
	} else if a.stale && len(answered) > 0 {
		text += "; cut off from the API server: probes whether other nodes answer"
	}
	if err != nil {
		text += "; " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return text
}
