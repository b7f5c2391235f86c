package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/apivip"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/bgp"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "bgp"

// Components describes the component without its Run function. The list is empty without peers.
func Components(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if spec.Network.BGP == nil {
		return nil
	}
	return []component.Component{kubeconfig.NodeComponent(spec, dirs, Name, nodespec.NodeAgentCert, nodespec.NodeAgentKey)}
}

// Run announces the addresses of the machine until ctx is done, and withdraws them.
func Run(ctx context.Context, env component.Env) error {
	passwords, err := readPasswords(env.Dirs.Node)
	if err != nil {
		return err
	}
	a := newAgent(env.Spec, bootenv.BootID(), bgp.Dial)
	a.close = closeAddresses
	var parts []func(context.Context) error
	if env.Spec.Network.AnnounceAPI && env.Spec.Node.ControlPlane {
		parts = append(parts, func(ctx context.Context) error { return apivip.RunAnnounced(ctx, env, a.api.Set) })
	}
	if pools := nodespec.AnnouncedBy(true, env.Spec.Network.Pools); len(pools) > 0 {
		parts = append(parts, func(ctx context.Context) error { return a.watchCluster(ctx, env, pools) })
	}
	return a.run(ctx, passwords, env.Announce, parts...)
}

// run runs the sessions and the parts, which set the input of the plan, until ctx is done or a part
// fails. The unused ports stay closed until the sessions have ended.
func (a *agent) run(ctx context.Context, passwords map[netip.Addr]string, announce component.Announce, parts ...func(context.Context) error) error {
	// A killed process leaves its rules in the kernel.
	if err := a.close(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { a.sessions(ctx, passwords) })
	ended := make(chan error, len(parts))
	for _, part := range parts {
		running.Go(func() { ended <- part(ctx) })
	}
	err := a.report(ctx, ended, announce)
	cancel()
	running.Wait()
	return errors.Join(err, a.close(nil))
}

// readPasswords reads the passwords of the peers.
func readPasswords(dir string) (map[netip.Addr]string, error) {
	file := filepath.Join(dir, nodespec.BGPPasswordsFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all map[netip.Addr]string
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("passwords of BGP peers: cannot read: %w", err)
	}
	return all, nil
}

// peerState is the state of the session with a peer.
type peerState struct {
	state   bgp.State // 0: no connection
	since   time.Time // of the state
	problem string    // why there is no session
}

// agent holds the inputs of the plan and the states of the sessions.
type agent struct {
	spec   nodespec.Spec
	boot   string
	dial   func(context.Context, bgp.Peer) (net.Conn, error)
	close  func([]netip.Prefix) error // closes the unused ports of addresses
	api    *cell.Cell[[]netip.Addr]   // virtual addresses that this machine serves
	view   *cell.Cell[View]           // the input of the plan, without the field API
	routes *cell.Cell[[]netip.Prefix]
	peers  *cell.Cell[map[netip.Addr]peerState]
}

func newAgent(spec nodespec.Spec, boot string, dial func(context.Context, bgp.Peer) (net.Conn, error)) *agent {
	return &agent{
		spec: spec, boot: boot, dial: dial, close: func([]netip.Prefix) error { return nil }, api: cell.New([]netip.Addr(nil)), view: cell.New(View{}),
		routes: cell.New([]netip.Prefix{}), peers: cell.New(map[netip.Addr]peerState{}),
	}
}

// watchCluster reads the Nodes and Services into view after each change, until ctx is done.
func (a *agent) watchCluster(ctx context.Context, env component.Env, pools []nodespec.Pool) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	client, err := component.NewClient(config)
	if err != nil {
		return err
	}
	cluster, err := l2announcer.Watch(ctx, client, pools)
	if err != nil {
		return err
	}
	for {
		select {
		case <-cluster.Changed:
		case <-ctx.Done():
			return nil
		}
		nodes, services, err := cluster.Read()
		if err != nil {
			return err
		}
		a.view.Set(View{Self: a.spec.Node.Name, BootID: a.boot, Nodes: nodes, Services: services})
	}
}

// report updates the routes and announces the state of the component, until ctx is done or a part
// has ended.
func (a *agent) report(ctx context.Context, ended <-chan error, announce component.Announce) error {
	api, view, peers := a.api.Watch(), a.view.Watch(), a.peers.Watch()
	for reported := ""; ; {
		v := view.Current()
		v.API = api.Current()
		if want, have := Plan(v), a.have(); !slices.Equal(want, have) {
			klog.Infof("%s: announces %v", Name, want)
			if err := a.close(want); err != nil {
				return err
			}
			a.routes.Set(want)
		}
		if text := describe(a.have(), a.spec.Network.BGP.Peers, peers.Current()); text != reported && ctx.Err() == nil {
			reported = text
			announce(Name, true, text)
		}
		select {
		case <-api.Changed():
		case <-view.Changed():
		case <-peers.Changed():
		case err := <-ended:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// have returns the announced routes.
func (a *agent) have() []netip.Prefix {
	routes, _ := a.routes.Get()
	return routes
}

// describe returns the status of the component. The status is a problem if the machine has no
// session with any router.
func describe(routes []netip.Prefix, all []nodespec.BGPPeer, states map[netip.Addr]peerState) string {
	parts := []string{fmt.Sprintf("announces %d addresses", len(routes))}
	established := false
	for _, p := range all {
		at := p.Address.Addr()
		switch s := states[at]; {
		case s.state == bgp.Established:
			established = true
			parts = append(parts, fmt.Sprintf("%s: session since %s", at, s.since.UTC().Format(time.RFC3339)))
		case s.problem != "":
			parts = append(parts, fmt.Sprintf("%s: %s", at, s.problem))
		default:
			parts = append(parts, fmt.Sprintf("%s: connects", at))
		}
	}
	text := strings.Join(parts, "; ")
	if !established {
		text = nodespec.ProblemPrefix + text
	}
	return text
}

// retries is the delay before the next attempt to connect.
var retries = backoff.Backoff{Min: time.Second, Max: 15 * time.Second}

// sessions keeps a session with each peer until ctx is done.
func (a *agent) sessions(ctx context.Context, passwords map[netip.Addr]string) {
	var running sync.WaitGroup
	for _, p := range a.spec.Network.BGP.Peers {
		running.Go(func() {
			peer := bgp.Peer{Address: p.Address, Source: p.Source, Password: passwords[p.Address.Addr()], OneHop: p.OneHop}
			for failures := 0; ctx.Err() == nil; {
				began := time.Now()
				err := a.session(ctx, p, peer)
				if time.Since(began) > retries.Max { // the session worked
					failures = 0
				}
				failures++
				a.note(p.Address.Addr(), peerState{since: time.Now(), problem: err.Error()})
				if backoff.Sleep(ctx, retries.Delay(failures)) != nil {
					return
				}
			}
		})
	}
	running.Wait()
}

// session runs a session, and returns why it ended.
func (a *agent) session(ctx context.Context, p nodespec.BGPPeer, peer bgp.Peer) error {
	conn, err := a.dial(ctx, peer)
	if err != nil {
		return err
	}
	c := bgp.Config{
		ASN: a.spec.Network.BGP.ASN, RouterID: a.spec.Network.BGP.RouterID, PeerASN: p.ASN,
		HoldTime: time.Duration(p.HoldTime) * time.Second, NextHops: nextHops(conn.LocalAddr(), a.spec.Node.IPs),
	}
	return bgp.Serve(ctx, conn, c, a.routes.Watch(), bgp.Hooks{State: func(s bgp.State) {
		a.note(p.Address.Addr(), peerState{state: s, since: time.Now()})
	}})
}

// nextHops returns the addresses by which the peer reaches this machine: the address of the
// connection, and the machine's address of the other family.
func nextHops(local net.Addr, own []netip.Addr) []netip.Addr {
	var all []netip.Addr
	if at, err := netip.ParseAddrPort(local.String()); err == nil {
		all = append(all, at.Addr().Unmap())
	}
	for _, a := range own {
		if !slices.ContainsFunc(all, func(b netip.Addr) bool { return b.Is4() == a.Is4() }) {
			all = append(all, a)
		}
	}
	return all
}

// note stores and logs the state of a session. The problem of the last attempt stays until the
// session is established.
func (a *agent) note(peer netip.Addr, next peerState) {
	a.peers.Update(func(old map[netip.Addr]peerState) map[netip.Addr]peerState {
		was := old[peer]
		if next.problem == "" && next.state != bgp.Established {
			next.problem = was.problem
		}
		if next.state == bgp.Established || next.problem != was.problem {
			klog.Infof("%s: peer %s: %s %s", Name, peer, next.state, next.problem)
		}
		out := maps.Clone(old)
		out[peer] = next
		return out
	})
}
