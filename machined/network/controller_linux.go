package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Deps are the dependencies of the controller.
type Deps struct {
	Config *cell.Cell[Config] // read: the desired network
	State  *cell.Cell[State]  // written: the actual network
	Files  FilePaths          // SystemFiles on a machine
	// Leases is a directory on disk that stores leases across restarts, so that the machine
	// requests its old address first; empty: leases are not stored.
	Leases LeaseDir
	// Log is called with a line for every operation, lease and new problem. It must not block.
	Log func(line string)
	// LoadModules loads the kernel modules of created links; nil: the kernel has them.
	LoadModules func(names ...string) error
}

// Intervals between readings of the kernel.
const (
	burstDelay   = 5 * time.Millisecond // after a reading; combines a burst of notifications
	minBackoff   = 250 * time.Millisecond
	maxBackoff   = 15 * time.Second
	resyncPeriod = time.Minute // without changes: recovers from a lost notification
	// read, diff, do: the second round is empty unless other processes make changes at the same
	// time
	maxRounds = 4
)

// Controller converges the network to the configuration.
type Controller struct {
	deps    Deps
	changes cell.Signal // signals a change

	mu      sync.Mutex // guards the fields that the goroutines of the watcher and the clients use
	managed map[int]bool
	missing bool // a configured link does not exist; a new link may match it
	status  map[int]dhcp.Status
	mtus    formerMTUs

	memory memory

	clients map[int]*client // by the link's index; the controller's goroutine only
	six     *autoconf
	// the last active lease, by Link.leaseKey; the controller's goroutine only
	last   map[string]*dhcp.Lease
	failed []string // of the last round, to log a problem once
}

// client is a DHCP client that runs on a link.
type client struct {
	link          Link
	dhcp          *dhcp.Client
	carrier       bool
	lease         *dhcp.Lease // the last lease seen, to log a new lease
	loggedProblem string      // the last logged problem of the lease
	stop          func()      // stops the client and waits for its end
}

// New returns a controller. The caller calls Run once at a time.
func New(d Deps) *Controller {
	return &Controller{
		deps: d, changes: cell.NewSignal(),
		managed: map[int]bool{}, status: map[int]dhcp.Status{}, mtus: formerMTUs{}, clients: map[int]*client{}, last: map[string]*dhcp.Lease{},
		six: newAutoconf(),
	}
}

// Run works until ctx is done, and then leaves the network unchanged. Apart from ctx's error, it
// fails only if a kernel socket cannot be opened or stops working; the caller then calls Run again.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return err
	}
	defer kernel.Close()
	kernel.loadModules, kernel.memory = c.deps.LoadModules, &c.memory
	watcher, err := rtnl.Subscribe() // before the first reading, so that no change is missed
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		cancel(panics.Do("network watcher", func() error { return watcher.Run(ctx, c.handleNotification) }))
	})
	defer func() {
		cancel(nil)
		for index := range c.clients {
			c.stopClient(index)
		}
		c.stopClients6()
	}()
	return c.loop(ctx, kernel)
}

func (c *Controller) loop(ctx context.Context, kernel *Kernel) error {
	config := c.deps.Config.Watch()
	failures := 0
	for {
		// The watch precedes the reading: a configuration set in between wakes the next round.
		cfg, revision, err := config.Next(ctx)
		if err != nil {
			return context.Cause(ctx)
		}
		for again := true; again; {
			wait := resyncPeriod
			c.solicitRouters(time.Now())
			if c.reconcile(ctx, kernel, cfg, revision) {
				failures, wait = 0, c.nextAdvertised(time.Now())
			} else {
				failures++
				wait = backoff.Backoff{Min: minBackoff, Max: maxBackoff}.Delay(failures)
			}
			if err := backoff.Sleep(ctx, burstDelay); err != nil {
				return err
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			case <-config.Changed():
				again = false
			case <-c.changes:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// handleNotification wakes the loop for a relevant notification. The pods of a node cause many
// irrelevant ones.
func (c *Controller) handleNotification(n rtnl.Change) {
	c.mu.Lock()
	mine := c.managed[n.Index]
	missing := c.missing
	c.mu.Unlock()
	switch {
	case n.Kind == rtnl.RouterOption:
		if !mine || !c.addAdvertised(n, time.Now()) {
			return
		}
	case n.Kind == rtnl.EventsLost:
		c.loseAdvertised()
	case mine && n.Kind != rtnl.RouteChanged, n.Kind != rtnl.LinkChanged && n.Protocol == Protocol:
	case n.Kind == rtnl.LinkChanged && (n.LinkKind == "" || missing):
	default:
		return
	}
	c.changes.Wake()
}

// reconcile reads, plans and performs operations until none remain, and publishes the state. It
// reports whether the network has converged without an error.
func (c *Controller) reconcile(ctx context.Context, kernel *Kernel, cfg Config, revision uint64) bool {
	old, _ := c.deps.State.Get()
	o := observation{config: cfg, revision: revision, node: old.Node}
	var err error
	for range maxRounds {
		if o.have, err = kernel.Read(cfg); err != nil {
			o.failed = []string{err.Error()}
			break
		}
		c.latchFlags(o.have)
		links := planLinks(cfg, Facts{Links: o.have.Links})
		c.setManaged(cfg, o.have, links)
		c.runClients(ctx, cfg, o.have, links)
		c.runClients6(ctx, cfg, o.have, links)
		o.leases, o.clients = c.leases()
		o.six = c.observe6(o.have, links, time.Now())
		want := Plan(cfg, Facts{Links: o.have.Links, Leases: o.leases, Leases6: o.six.leases, Routers: o.six.routers, MTUs: c.former(), Hardware: c.memory.formerHardware()})
		ops := Diff(o.have, want)
		c.recordMTUs(o.have.Links, ops)
		c.memory.recordHardware(o.have.Links, ops)
		o.failed, o.left = c.do(ctx, kernel, ops), len(ops)
		c.releaseLeases6() // after the removal of their addresses
		if len(ops) == 0 || len(o.failed) > 0 || ctx.Err() != nil {
			break
		}
	}
	for _, f := range o.failed {
		if !slices.Contains(c.failed, f) {
			c.deps.Log(f)
		}
	}
	c.failed = o.failed
	// Watchers are woken only for changes.
	state := describe(o, time.Now())
	if !reflect.DeepEqual(old, state) {
		c.deps.State.Set(state)
	}
	return len(o.failed) == 0
}

// do performs operations. A failed operation does not stop the others: a link without its route is
// better than no link.
func (c *Controller) do(ctx context.Context, kernel *Kernel, ops []Op) []string {
	var failed []string
	for _, op := range ops {
		if ctx.Err() != nil {
			break
		}
		if err := kernel.Do(op); err != nil {
			failed = append(failed, err.Error())
			continue
		}
		c.deps.Log(op.String())
	}
	return failed
}

// setManaged passes the managed links to the watcher.
func (c *Controller) setManaged(cfg Config, have Have, links []WantLink) {
	managed := make(map[int]bool, len(links))
	for _, l := range links {
		managed[l.Index] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.managed, c.missing = managed, len(Missing(cfg, Facts{Links: have.Links})) > 0
}

// recordMTUs and former guard formerMTUs, which DryRun reads concurrently.
func (c *Controller) recordMTUs(links []Link, ops []Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mtus.record(links, ops)
}

func (c *Controller) former() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mtus)
}

// leases returns the active leases by link name, and the states of the clients by link index.
func (c *Controller) leases() (map[string]*dhcp.Lease, map[int]dhcp.Status) {
	leases, status := map[string]*dhcp.Lease{}, map[int]dhcp.Status{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for index, cl := range c.clients {
		st, ok := c.status[index]
		if !ok {
			continue
		}
		status[index] = st
		if st.Lease != nil {
			leases[cl.link.Name] = st.Lease
		}
	}
	return leases, status
}

// runClients starts a DHCP client on every link that needs it, stops the others, reports carrier
// changes to them and logs leases. A link that was replugged, renamed or has a new MAC is a new
// link.
func (c *Controller) runClients(ctx context.Context, cfg Config, have Have, links []WantLink) {
	keep := map[int]bool{}
	for _, w := range links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 {
			continue // it does not exist yet
		}
		l := have.Links[i]
		if !w.DHCP4 || !l.Ethernet {
			continue
		}
		keep[l.Index] = true
		cl := c.clients[l.Index]
		if cl != nil && (cl.link.Name != l.Name || cl.link.MAC != l.MAC) {
			c.stopClient(l.Index)
			cl = nil
		}
		if cl == nil {
			cl = c.startClient(ctx, l, have)
			c.clients[l.Index] = cl
		}
		cl.dhcp.SetHostname(cfg.Hostname)
		if carrier := l.Up && l.Carrier; carrier != cl.carrier {
			cl.carrier = carrier
			cl.dhcp.SetCarrier(carrier)
		}
		c.recordLease(cl)
	}
	for index := range c.clients {
		if !keep[index] {
			c.stopClient(index)
		}
	}
}

func (c *Controller) startClient(ctx context.Context, l Link, have Have) *client {
	mac, _ := net.ParseMAC(l.MAC) // it comes from the kernel
	cl := &client{link: l}
	remembered, err := c.deps.Leases.Load(l.leaseKey())
	if err != nil {
		c.deps.Log(err.Error()) // the client works without it
	}
	if last := c.last[l.leaseKey()]; last != nil {
		remembered = last
	}
	// After a restart of the controller the link still has its address: the address stays while the
	// client contacts the server.
	inForce := remembered != nil && slices.Contains(have.Addresses, Address{l.Name, l.Index, remembered.Address})
	if inForce {
		cl.lease = remembered
		c.mu.Lock()
		c.status[l.Index] = dhcp.Status{Phase: dhcp.Rebooting, Lease: remembered, Since: time.Now()}
		c.mu.Unlock()
	}
	cl.dhcp = dhcp.New(dhcp.Options{
		Link: l.Name, Index: l.Index, MAC: mac, StoredLease: remembered, InForce: inForce, Random: rand.Uint32,
		Changed: func(st dhcp.Status) {
			c.mu.Lock()
			c.status[l.Index] = st
			c.mu.Unlock()
			c.changes.Wake()
		},
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		dhcpRestarter.Run(ctx, "DHCP on "+l.Name, func(ctx context.Context) { cl.dhcp.Run(ctx) })
	}()
	cl.stop = func() {
		cancel()
		<-done
	}
	return cl
}

// dhcpRestarter restarts a client after a panic: a reply of a foreign host may be the cause.
var dhcpRestarter = panics.Restarter{MinBackoff: time.Second, MaxBackoff: time.Minute}

// stopClient stops a client; its lease is no longer active, and the next plan removes the address.
func (c *Controller) stopClient(index int) {
	c.clients[index].stop()
	delete(c.clients, index)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.status, index)
}

// recordLease logs and stores a new lease, and removes an expired lease.
func (c *Controller) recordLease(cl *client) {
	c.mu.Lock()
	lease, problem := c.status[cl.link.Index].Lease, c.status[cl.link.Index].Problem
	c.mu.Unlock()
	if lease == cl.lease {
		return
	}
	cl.lease, c.last[cl.link.leaseKey()] = lease, lease
	if lease == nil {
		c.deps.Log(fmt.Sprintf("link %s: the DHCP lease has ended", cl.link.Name))
	} else {
		c.deps.Log(fmt.Sprintf("link %s: lease of %v from %v for %v", cl.link.Name, lease.Address, lease.Server, lease.Duration))
		if problem != "" && problem != cl.loggedProblem { // a renewal repeats the same problem
			c.deps.Log(fmt.Sprintf("link %s: %s", cl.link.Name, problem))
		}
		cl.loggedProblem = problem
	}
	if err := c.deps.Leases.Save(cl.link.leaseKey(), lease); err != nil {
		c.deps.Log(err.Error())
	}
}

// MissingLinks returns the selectors of configured links that do not exist now, and the names of
// the links that could be configured.
func (c *Controller) MissingLinks(cfg Config) (missing, there []string, err error) {
	links, err := c.links(cfg)
	for _, l := range sortedLinks(links) {
		if l.Physical() {
			there = append(there, l.Name)
		}
	}
	return Missing(cfg, Facts{Links: links}), there, err
}

// TakenLinks returns the names of new links of the next configuration that other links have.
func (c *Controller) TakenLinks(before, next Config) ([]string, error) {
	links, err := c.links(next)
	known := Taken(before, Facts{Links: links})
	return slices.DeleteFunc(Taken(next, Facts{Links: links}), func(name string) bool { return slices.Contains(known, name) }), err
}

// links reads the links for a configuration.
func (c *Controller) links(cfg Config) ([]Link, error) {
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return nil, err
	}
	have, err := kernel.Read(cfg)
	return have.Links, errors.Join(err, kernel.Close())
}

// DryRun returns the operations that a configuration would cause now, one line each. It uses the
// active leases; the future lease of a new DHCP client is not included.
func (c *Controller) DryRun(cfg Config) ([]string, error) {
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return nil, err
	}
	kernel.memory = &c.memory
	have, err := kernel.Read(cfg)
	if err = errors.Join(err, kernel.Close()); err != nil {
		return nil, err
	}
	current, _ := c.deps.State.Get()
	c.latchFlags(have)
	facts := Facts{Links: have.Links, Leases: map[string]*dhcp.Lease{}, Leases6: map[string]*dhcp6.Lease{}, Routers: map[string]ra.Info{}, MTUs: c.former(), Hardware: c.memory.formerHardware()}
	for _, l := range current.Links {
		if l.DHCP != nil && l.DHCP.Lease != nil {
			facts.Leases[l.Name] = l.DHCP.Lease
		}
		if l.DHCP6 != nil && l.DHCP6.Lease != nil {
			facts.Leases6[l.Name] = l.DHCP6.Lease
		}
		if l.Advertised != nil {
			facts.Routers[l.Name] = l.Advertised.Info
		}
	}
	var out []string
	for _, op := range Diff(have, Plan(cfg, facts)) {
		out = append(out, op.String())
	}
	return out, nil
}
