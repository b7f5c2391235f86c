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

// Name is the name of the component.
const Name = "l2-announcer"

// Components returns the component, to which the caller adds its Run function. The list is empty if
// the configuration has no pool that nodes announce on the link.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if len(nodespec.AnnouncedBy(false, spec.Network.Pools)) == 0 {
		return nil
	}
	return []component.Component{kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)}
}

// Run answers for the addresses that the node wins until ctx is done. It fails if the clients, the
// sockets or the watch of the cluster cannot be set up.
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

// pollLease reads the node's Lease every pollInterval and sends its version to the channel. It
// skips a read that fails. It returns when ctx is done.
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

// leaseVersion is a version of the Lease that the API server returned, with the time of the
// request. The API server read the Lease at that time or later.
type leaseVersion struct {
	version string
	at      time.Time
}

// maxHeard is the largest number of claims that the agent stores between two steps. The limit is
// necessary because every machine on the link can send claims. For the same reason the agent logs a
// repeated claim only once in defendInterval.
const maxHeard = 256

// agent runs the steps of state: it collects the observations and performs the actions on the
// sockets.
type agent struct {
	state
	spec     nodespec.Spec
	watch    func(context.Context) (*Cluster, error)
	from     *Cluster // the current watch of the cluster
	stop     func()   // ends the current watch
	ports    *neighbor.Sockets
	nodes    []Node
	services []Service
	links    []neighbor.Link
	heard    []neighbor.SeenAddress // packets that arrived since the last step
	lease    lease
	// stale means that the node was cut off after the current watch began, so the fields nodes and
	// services may be out of date.
	stale     bool
	known     bool                    // the agent has read the cluster at least once
	conflicts map[netip.Addr]conflict // the last logged claim of each address
}

// conflict is the last logged claim of another machine for an address.
type conflict struct {
	by       neighbor.MAC
	loggedAt time.Time
}

// newAgent returns an agent. The function follow starts each watch of the cluster. The agent counts
// its own start as a renewal of the Lease.
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
	restarted := false // the watch was restarted after the Lease was renewed
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
				// The old watch may not have detected yet that its connection is broken. A new
				// watch lists the current objects.
				if err := a.restartWatch(ctx); err != nil {
					return err
				}
				restarted = true
			}
		case other := <-a.ports.Heard:
			// The agent ignores claims that arrive before the first list of the cluster.
			if a.known && len(a.heard) < maxHeard && !slices.Contains(a.heard, other) {
				a.heard = append(a.heard, other)
			}
			continue
		case f := <-a.ports.Failed:
			klog.Infof("%s: %v", Name, f.Err)
			a.ports.Drop(f)
			continue // the next step opens the socket again, if the link still exists
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

// restartWatch ends the current watch of the cluster and starts a new one. It fails if the new
// watch cannot be set up.
func (a *agent) restartWatch(ctx context.Context) (err error) {
	if a.stop != nil {
		a.stop()
	}
	ctx, a.stop = context.WithCancel(ctx)
	a.from, err = a.watch(ctx)
	return err
}

// read copies the Nodes and Services from the caches of the watch to the agent. After a change of
// the Services it makes the next step run an election.
func (a *agent) read() error {
	nodes, services, err := a.from.Read()
	if err != nil {
		return err
	}
	if !a.known || !reflect.DeepEqual(services, a.services) {
		a.candidates = nil // the next step runs an election
	}
	a.nodes, a.services, a.known = nodes, services, true
	return nil
}

// relink reads the links from the kernel. If any link changed, the node announces all addresses
// again. If its own links changed, it also resets the state of its peers: it could not hear the
// peers while its link was down, so it must not consider them silent.
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
	// The comparison ignores the addresses of a link, because a change of addresses does not
	// interrupt the reception.
	same := func(x, y neighbor.Link) bool { return x.Index == y.Index && x.MAC == y.MAC }
	if !slices.EqualFunc(before, a.ownLinks(), same) {
		a.peers = peerState{}
	}
	return nil
}

// The method own returns the address with which the node announces itself: the first IP address of
// the node. In some tests the node has no address, and own returns the zero value.
func (a *agent) own() netip.Addr {
	if len(a.spec.Node.IPs) == 0 {
		return netip.Addr{}
	}
	return a.spec.Node.IPs[0]
}

// ownLinks returns the links on which the node announces itself. If the list is empty, the node
// hears no peers and relies on the API server.
func (a *agent) ownLinks() []neighbor.Link {
	return neighbor.Place(a.own(), a.links, a.spec.Node.IPs)
}

// listenModes returns the mode of each address of a Node: the node listens for the addresses of its
// peers, and announces its own.
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

// step runs a step of state, performs its actions and returns the status text of the component.
func (a *agent) step(now time.Time) string {
	// If two links of this machine are in the same network, one link receives the packets of the
	// other. These packets are dropped here.
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
