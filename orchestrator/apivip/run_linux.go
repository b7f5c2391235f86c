package apivip

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
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Name is the name of the component.
const Name = "virtual-address"

// Components describes the component without its Run function. It is empty without virtual
// addresses, with virtual addresses that BGP announces, and on a worker.
func Components(spec nodespec.Spec) []component.Component {
	if len(spec.VirtualAddresses) == 0 || spec.Network.AnnounceAPI || !spec.Node.ControlPlane {
		return nil
	}
	return []component.Component{{Process: component.Node, Name: Name}}
}

// Run makes this machine hold each address while the machine is chosen for it (state.go), until ctx
// is done.
func Run(ctx context.Context, env component.Env) error {
	prober := &health.Prober{
		CAFile: filepath.Join(env.Dirs.Node, nodespec.CA), Name: kubeconfig.Local().Name, Path: ReadyPath,
		Timeout: timeout, Idle: 10 * probeInterval, Dial: (&net.Dialer{}).DialContext,
	}
	defer prober.Close()
	a := newAgent(env.Spec)
	defer a.close()
	return neighbor.WithLinks(ctx, func(ctx context.Context, links <-chan struct{}) error {
		return a.run(ctx, prober.Probe, links, env.Announce)
	})
}

// agent is the loop around the decisions, the probes, the sockets and the redirects.
type agent struct {
	spec    nodespec.Spec
	ports   *neighbor.Sockets
	links   []neighbor.Link
	servers map[netip.Addr]APIServer              // by the addresses of the control-plane machines
	states  map[netip.Addr]State                  // by virtual address
	claims  map[netip.Addr][]neighbor.SeenAddress // since the last step
	// the IP addresses of control-plane machines, as far as they are known
	machines  map[neighbor.MAC]netip.Addr
	redirects []redirect // in the kernel
	nextWrite time.Time  // time of the next write after a failure
	failure   error      // of the last write
	write     func([]redirect) error
	dropFlows func(staleFlows) error
	moved     []staleFlows // flows to delete, one entry per address
	dropping  sync.Mutex   // held during a deletion
	lastDrop  time.Time    // the last start of a deletion
}

// flowDropInterval is the shortest time between two passes over all tracked connections of the
// kernel. Without this limit, an attacker could cause a pass with each forged announcement of an
// address.
const flowDropInterval = time.Second

func newAgent(spec nodespec.Spec) *agent {
	return &agent{
		spec: spec, ports: neighbor.NewSockets(), servers: map[netip.Addr]APIServer{}, states: map[netip.Addr]State{},
		claims: map[netip.Addr][]neighbor.SeenAddress{}, machines: map[neighbor.MAC]netip.Addr{}, write: writeRedirects, dropFlows: dropFlows,
	}
}

// close stops the answers and removes the redirects.
func (a *agent) close() {
	a.ports.Close()
	if err := a.write(nil); err != nil {
		klog.Infof("%s: %v", Name, err)
	}
}

// probeAnswer is the state of a server after a probe.
type probeAnswer struct {
	address netip.Addr
	server  APIServer
}

func (a *agent) run(ctx context.Context, probe func(context.Context, string) health.ProbeResult, links <-chan struct{}, announce component.Announce) error {
	// A killed process leaves its redirects in the kernel.
	if err := a.write(nil); err != nil {
		return err
	}
	answers := make(chan probeAnswer)
	for _, address := range a.spec.ControlPlanes {
		go poll(ctx, address, address == a.spec.OwnAddress(), probe, answers)
	}
	announce(Name, false, "waiting for announcements on the link")
	tick := time.NewTicker(neighbor.StepInterval)
	defer tick.Stop()
	for reported, works := "", false; ; {
		select {
		case <-links:
			all, err := neighbor.ReadLinks()
			if err != nil {
				return err
			}
			if !reflect.DeepEqual(all, a.links) {
				a.links, a.machines = all, map[neighbor.MAC]netip.Addr{}
			}
			continue
		case now := <-answers:
			if a.servers[now.address].Ready != now.server.Ready {
				klog.Infof("%s: API server of %s: ready: %t %s", Name, now.address, now.server.Ready, now.server.Problem)
			}
			a.servers[now.address] = now.server
			continue
		case c := <-a.ports.Heard:
			a.claims[c.Address] = append(a.claims[c.Address], c)
			continue
		case f := <-a.ports.Failed:
			klog.Infof("%s: %v", Name, f.Err)
			a.ports.Drop(f)
			continue // a later step reopens the socket; the link may be disappearing now
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		ok, detail := a.step(time.Now())
		if (detail != reported || ok != works) && ctx.Err() == nil {
			reported, works = detail, ok
			announce(Name, ok, detail)
		}
	}
}

// poll probes an API server repeatedly.
func poll(ctx context.Context, address netip.Addr, own bool, probe func(context.Context, string) health.ProbeResult, answers chan<- probeAnswer) {
	at := netip.AddrPortFrom(address, paths.PortKubernetes).String()
	if own {
		at = kubeconfig.Loopback.String()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for server := (APIServer{}); ; {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		got := probe(ctx, at)
		server = server.Answered(got.Problem, got.Late)
		select {
		case answers <- probeAnswer{address, server}:
		case <-ctx.Done():
			return
		}
		timer.Reset(server.next(own))
	}
}

// step performs the decisions of this moment, and reports whether every address has a holder, and
// which machine it is.
func (a *agent) step(now time.Time) (works bool, detail string) {
	own := a.spec.OwnAddress()
	duties := map[netip.Addr]neighbor.Mode{}
	var announced, probed []netip.Addr
	var redirects []redirect
	works = true
	var parts []string
	for _, address := range a.spec.VirtualAddresses {
		place, to, missing := a.linkFor(address)
		v := Observation{
			Now: now, Eligible: missing == "" && a.failure == nil && a.servers[own].Ready, Last: missing == "" && a.failure == nil && !anyReady(a.spec.ControlPlanes, a.servers),
			Most: mostReady(a.spec.ControlPlanes, a.servers), Ahead: ahead(a.spec.ControlPlanes, own, a.servers), Own: place.MAC,
		}
		for _, c := range a.claims[address] {
			// Two links of this machine may be on one network and receive each other's packets.
			if c.Link == place.Name && !slices.ContainsFunc(a.links, func(l neighbor.Link) bool { return l.MAC == c.MAC }) {
				v.Claims = append(v.Claims, c.MAC)
			}
		}
		old := a.states[address]
		s, todo := old.Step(v)
		a.states[address] = s
		if s.Active != old.Active {
			klog.Infof("%s: holds %s: %t", Name, address, s.Active)
		}
		duty := neighbor.Mode{Role: neighbor.Listen, Links: []neighbor.Link{place}}
		if s.Active {
			duty.Role = neighbor.Answer
			redirects = append(redirects, redirect{address, to})
		}
		if place.Index != 0 {
			duties[address] = duty
		}
		if todo.Announce {
			announced = append(announced, address)
		}
		if todo.Probe {
			probed = append(probed, address)
		}
		if todo.Moved {
			a.moved = slices.DeleteFunc(a.moved, func(m staleFlows) bool { return m.from == address })
			a.moved = append(a.moved, staleFlows{redirect{address, to}, s.Active})
		}
		answered, text := a.describe(address, s, now)
		if missing != "" {
			text += "; " + missing
		}
		works, parts = works && answered, append(parts, text)
	}
	clear(a.claims)
	err := a.redirect(redirects, now)
	if err != nil { // without the redirects, connections to the address would fail
		works, announced = false, nil
		for address, duty := range duties {
			duty.Role = neighbor.Listen
			duties[address] = duty
		}
	}
	err = errors.Join(err, a.ports.Apply(duties), a.ports.Announce(announced), a.ports.Probe(probed))
	a.dropMoved(now)
	if server := a.servers[own]; !server.Ready && server.Problem != "" {
		parts = append(parts, "the API server of this machine: "+server.Problem)
	}
	if err != nil {
		parts = append(parts, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return works, strings.Join(parts, "; ")
}

// linkFor returns the link on which this machine would hold an address. The result to is the
// machine's own address, to which connections are redirected. missing is the reason if the machine
// lacks the link or the address.
func (a *agent) linkFor(address netip.Addr) (place neighbor.Link, to netip.Addr, missing string) {
	if to = ownAddress(a.spec, address); !to.IsValid() {
		return neighbor.Link{}, netip.Addr{}, "this machine has no address of its family"
	}
	on := neighbor.Place(address, a.links, a.spec.Node.IPs)
	if len(on) == 0 {
		return neighbor.Link{}, netip.Addr{}, "no link of this machine has a network for it"
	}
	return on[0], to, ""
}

// redirect writes the redirects if they have changed, or if the last write failed a while ago.
func (a *agent) redirect(want []redirect, now time.Time) error {
	if slices.Equal(want, a.redirects) && a.failure == nil {
		return nil
	}
	if a.failure != nil && now.Before(a.nextWrite) {
		return a.failure
	}
	if a.failure = a.write(want); a.failure != nil {
		a.nextWrite = now.Add(announceInterval)
		return a.failure
	}
	a.redirects = want
	return nil
}

// dropMoved deletes the stale flows of addresses that have moved. The deletion runs in the
// background, because the kernel lists all tracked connections for it, perhaps a hundred thousand.
func (a *agent) dropMoved(now time.Time) {
	if len(a.moved) == 0 || now.Sub(a.lastDrop) < flowDropInterval || !a.dropping.TryLock() {
		return
	}
	moved := a.moved
	a.moved, a.lastDrop = nil, now
	go func() {
		defer a.dropping.Unlock()
		for _, m := range moved {
			if err := a.dropFlows(m); err != nil {
				klog.Infof("%s: %v", Name, err) // the flows end later by themselves
			}
		}
	}()
}

// describe names the machine that holds an address.
func (a *agent) describe(address netip.Addr, s State, now time.Time) (answered bool, detail string) {
	switch {
	case s.Active:
		return true, fmt.Sprintf("holds %s since %s", address, s.Since.UTC().Format(time.RFC3339))
	case s.Other == neighbor.MAC{} || now.Sub(s.Heard) > silence+stagger:
		return false, fmt.Sprintf("no machine holds %s", address)
	}
	return true, fmt.Sprintf("%s holds %s", a.machineName(s.Other), address)
}

// machineName returns the IP address of the machine with a hardware address. This machine probes
// the API servers of the others continuously, so the kernel has a neighbor entry with both
// addresses.
func (a *agent) machineName(mac neighbor.MAC) string {
	if ip, known := a.machines[mac]; known {
		return ip.String()
	}
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return mac.String()
	}
	for _, n := range all {
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); slices.Equal(n.HardwareAddr, mac[:]) && slices.Contains(a.spec.ControlPlanes, ip) {
			a.machines[mac] = ip
			return ip.String()
		}
	}
	return mac.String() + " (not a known control-plane machine)"
}
