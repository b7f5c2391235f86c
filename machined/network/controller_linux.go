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
	Config *cell.Cell[Config] // input: the configuration of the network
	State  *cell.Cell[State]  // output: the actual state of the network
	Files  FilePaths          // the files of name resolution; SystemFiles on a machine
	// Leases is the directory that stores leases across restarts. A new client first requests the
	// address of the stored lease. The empty LeaseDir stores no leases.
	Leases LeaseDir
	// The controller calls Log with a line for each operation, each lease and each new problem. Log
	// must not block.
	Log func(line string)
	// LoadModules loads the kernel modules of links that the package creates. It is nil if the
	// kernel already has all modules.
	LoadModules func(names ...string) error
}

// Intervals between two readings of the kernel, and the limit of rounds.
const (
	burstDelay = 5 * time.Millisecond // the shortest interval; combines a burst of notifications
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
	// the interval without a notification, in case the kernel has lost a notification
	resyncPeriod = time.Minute
	// maxRounds is the limit for rounds of read, diff and do in a call of reconcile. The second
	// round normally finds no operation. It finds operations if another process changes the network
	// at the same time.
	maxRounds = 4
)

// Controller converges the network to the configuration.
type Controller struct {
	deps    Deps
	changes cell.Signal // wakes the loop

	// mu guards managed, missing, status and mtus, which several goroutines use. It also guards
	// some fields of six (see autoconf).
	mu sync.Mutex
	// managed has the indexes of the managed links.
	managed map[int]bool
	missing bool // a configured link does not exist, so a new link may match it
	// status has the states of the DHCPv4 clients, by index of the link.
	status map[int]dhcp.Status
	mtus   formerMTUs

	memory memory

	clients map[int]*client // by index of the link; only the goroutine of Run uses it
	six     *autoconf
	// last has the last active lease of each link, by Link.leaseKey. Only the goroutine of Run uses
	// it.
	last map[string]*dhcp.Lease
	// failed has the problems of the previous call of reconcile, so that a repeated problem is
	// logged only once.
	failed []string
}

// client is a DHCPv4 client that runs on a link.
type client struct {
	link          Link
	dhcp          *dhcp.Client
	carrier       bool
	lease         *dhcp.Lease // the lease that was last logged
	loggedProblem string      // the last logged problem of the lease
	stop          func()      // stops the client and waits for its end
}

// New returns a controller that does not run yet. At most one call of Run may be active at a time.
func New(d Deps) *Controller {
	return &Controller{
		deps: d, changes: cell.NewSignal(),
		managed: map[int]bool{}, status: map[int]dhcp.Status{}, mtus: formerMTUs{}, clients: map[int]*client{}, last: map[string]*dhcp.Lease{},
		six: newAutoconf(),
	}
}

// restartDelay is the delay after a failure of Run.
const restartDelay = time.Second

// Supervise calls Run until ctx is done, with restartDelay between two calls. It passes each result
// of Run to failed. A panic in Run does not end Supervise.
func (c *Controller) Supervise(ctx context.Context, failed func(error)) {
	for ctx.Err() == nil {
		_ = panics.Do("network", func() error { failed(c.Run(ctx)); return nil })
		_ = backoff.Sleep(ctx, restartDelay) // the loop ends with ctx
	}
}

// Run reconciles until ctx is done, and then returns the cause of ctx. It leaves the network as it
// is. Run returns another error if a kernel socket cannot be opened or stops working; the caller
// then calls Run again.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return err
	}
	defer kernel.Close()
	kernel.loadModules, kernel.memory = c.deps.LoadModules, &c.memory
	watcher, err := rtnl.Subscribe() // starts before the first reading, so no change is missed
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

// loop reconciles after a change of the configuration, after a relevant notification, and after a
// wait. It returns when ctx is done.
func (c *Controller) loop(ctx context.Context, kernel *Kernel) error {
	config := c.deps.Config.Watch()
	failures := 0
	for {
		// Next returns before the kernel is read. If the configuration changes during the reading,
		// Changed wakes the loop for another round.
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

// handleNotification wakes the loop if a notification is relevant. It ignores the many
// notifications that the pods of a node cause.
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

// reconcile repeats four steps until no operation remains, at most maxRounds times: it reads the
// kernel, plans, compares, and performs the operations. Then it publishes the state. It returns
// true if no operation remains. If it returns false, the caller repeats the call soon.
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
		c.releaseLeases6() // after c.do, which removes the addresses of these leases
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
	// Set wakes all watchers, so reconcile does not set an equal state.
	state := describe(o, time.Now())
	if !reflect.DeepEqual(old, state) {
		c.deps.State.Set(state)
	}
	return len(o.failed) == 0 && o.left == 0
}

// do performs operations in order and returns the error texts of the failed operations. After a
// failure it continues with the next operation, because a link without its route is better than no
// link.
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

// setManaged records for handleNotification which links are managed, and whether a configured link
// is missing.
func (c *Controller) setManaged(cfg Config, have Have, links []WantLink) {
	managed := make(map[int]bool, len(links))
	for _, l := range links {
		managed[l.Index] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.managed, c.missing = managed, len(Missing(cfg, Facts{Links: have.Links})) > 0
}

// recordMTUs records the MTUs before ops change them. It locks mu, because DryRun reads the MTUs at
// the same time.
func (c *Controller) recordMTUs(links []Link, ops []Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mtus.record(links, ops)
}

// former returns a copy of the recorded MTUs, by index of the link.
func (c *Controller) former() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mtus)
}

// leases returns the active DHCPv4 leases by name of the link, and the states of the clients by
// index of the link.
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

// runClients starts a DHCPv4 client on each Ethernet link that needs a client, and stops the
// clients of all other links. It passes changes of the carrier to the clients and records their
// leases. A link with another index, name or MAC than before gets a new client.
func (c *Controller) runClients(ctx context.Context, cfg Config, have Have, links []WantLink) {
	keep := map[int]bool{}
	for _, w := range links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 {
			continue // the link does not exist yet
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

// startClient starts a DHCPv4 client on a link. The client first requests the address of the last
// active lease, or else of the stored lease.
func (c *Controller) startClient(ctx context.Context, l Link, have Have) *client {
	mac, _ := net.ParseMAC(l.MAC) // the error is impossible: the MAC comes from the kernel
	cl := &client{link: l}
	remembered, err := c.deps.Leases.Load(l.leaseKey())
	if err != nil {
		c.deps.Log(err.Error()) // the client also works without a stored lease
	}
	if last := c.last[l.leaseKey()]; last != nil {
		remembered = last
	}
	// After a restart of the controller, the link may still have the address of the lease. The
	// address then stays in use while the client contacts the server.
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

// dhcpRestarter restarts a DHCP client after a panic. A message of a foreign host can cause a
// panic.
var dhcpRestarter = panics.Restarter{MinBackoff: time.Second, MaxBackoff: time.Minute}

// stopClient stops a client. Its lease is then no longer active, so the next plan removes the
// address.
func (c *Controller) stopClient(index int) {
	c.clients[index].stop()
	delete(c.clients, index)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.status, index)
}

// recordLease compares the lease of a client with the lease that was last logged. It logs and
// stores a new lease. If the lease has ended, it removes the stored lease.
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
		if problem != "" && problem != cl.loggedProblem { // each renewal has the same problem
			c.deps.Log(fmt.Sprintf("link %s: %s", cl.link.Name, problem))
		}
		cl.loggedProblem = problem
	}
	if err := c.deps.Leases.Save(cl.link.leaseKey(), lease); err != nil {
		c.deps.Log(err.Error())
	}
}

// MissingLinks returns the selectors of cfg that select no existing link (missing), and the names
// of the existing physical links (present).
func (c *Controller) MissingLinks(cfg Config) (missing, present []string, err error) {
	links, err := c.links(cfg)
	for _, l := range sortedLinks(links) {
		if l.Physical() {
			present = append(present, l.Name)
		}
	}
	return Missing(cfg, Facts{Links: links}), present, err
}

// TakenLinks returns the names of virtual links in the next configuration that hardware or another
// component has already. It omits a name that is also taken in the previous configuration.
func (c *Controller) TakenLinks(previous, next Config) ([]string, error) {
	links, err := c.links(next)
	known := Taken(previous, Facts{Links: links})
	return slices.DeleteFunc(Taken(next, Facts{Links: links}), func(name string) bool { return slices.Contains(known, name) }), err
}

// links reads the links from the kernel, with the settings that cfg needs.
func (c *Controller) links(cfg Config) ([]Link, error) {
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return nil, err
	}
	have, err := kernel.Read(cfg)
	return have.Links, errors.Join(err, kernel.Close())
}

// DryRun returns the operations that a configuration would cause now, as one line each. It uses the
// active leases. It omits the operations for a lease that a new DHCP client would get later.
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
	c.peekFlags(have)
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
