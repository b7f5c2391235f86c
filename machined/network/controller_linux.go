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

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/dhcp"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/rtnl"
)

// Deps is what the controller works with.
type Deps struct {
	Config *cell.Cell[Config] // read: what the network should be
	State  *cell.Cell[State]  // written: what it is
	Files  FilePaths          // SystemFiles on a machine
	// Leases is a folder on a disk in which leases are remembered across restarts, so that the
	// machine asks for its old address first; empty: they are not.
	Leases LeaseDir
	// Log is called with one line for every operation, lease and new problem. It must not block.
	Log func(line string)
}

// How often the kernel is looked at.
const (
	restBetween = 5 * time.Millisecond // after a look; a burst of notifications is one change
	firstRetry  = 250 * time.Millisecond
	lastRetry   = 15 * time.Second
	steadyLook  = time.Minute // when all is well: a lost notification does not stay lost
	// read, diff, do: the second round is empty unless somebody changes things at the same time
	maxRounds = 4
)

// Controller keeps the network as it should be.
type Controller struct {
	deps Deps
	kick chan struct{} // something has changed

	mu      sync.Mutex // guards what the watcher's and the clients' goroutines touch
	managed map[int]bool
	missing bool // a configured link does not exist: any new link may be it
	status  map[int]dhcp.Status
	mtus    formerMTUs

	clients map[int]*client // by the link's index; the controller's goroutine only
	// the last lease in force, by MAC; the controller's goroutine only
	last   map[string]*dhcp.Lease
	failed []string // of the last round, to log a problem once
}

// client is a DHCP client that runs on a link.
type client struct {
	link    Link
	dhcp    *dhcp.Client
	carrier bool
	lease   *dhcp.Lease // the last one seen, to log a new one
	told    string      // what of it could not be used, as it was logged
	stop    func()      // ends it and waits for the end
}

// New returns a controller. Give it one Run.
func New(d Deps) *Controller {
	return &Controller{
		deps: d, kick: make(chan struct{}, 1),
		managed: map[int]bool{}, status: map[int]dhcp.Status{}, mtus: formerMTUs{}, clients: map[int]*client{}, last: map[string]*dhcp.Lease{},
	}
}

// Run works until ctx is done, and then leaves the network as it is. The only errors besides ctx's
// are sockets to the kernel that cannot be opened or stop working; run it again then.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return err
	}
	defer kernel.Close()
	watcher, err := rtnl.Subscribe() // before the first look, so that nothing is missed
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { cancel(panics.Do("network watcher", func() error { return watcher.Run(ctx, c.notice) })) })
	defer func() {
		cancel(nil)
		for index := range c.clients {
			c.stopClient(index)
		}
	}()
	return c.loop(ctx, kernel)
}

func (c *Controller) loop(ctx context.Context, kernel *Kernel) error {
	config := c.deps.Config.Watch()
	retry := firstRetry
	for {
		// Changed first, then the look: a configuration set in between wakes the next round.
		cfg, revision, err := config.Next(ctx)
		if err != nil {
			return context.Cause(ctx)
		}
		for again := true; again; {
			wait := steadyLook
			if c.reconcile(ctx, kernel, cfg, revision) {
				retry = firstRetry
			} else {
				wait, retry = retry, min(retry*2, lastRetry)
			}
			if err := rest(ctx, restBetween); err != nil {
				return context.Cause(ctx)
			}
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			case <-config.Changed():
				again = false
			case <-c.kick:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

// rest waits, or returns ctx's error.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// notice wakes the loop for a notification that can matter. A node's pods make many that do not.
func (c *Controller) notice(n rtnl.Change) {
	c.mu.Lock()
	mine := c.managed[n.Index]
	missing := c.missing
	c.mu.Unlock()
	switch {
	case n.Kind == rtnl.EventsLost, mine && n.Kind != rtnl.RouteChanged, n.Kind != rtnl.LinkChanged && n.Protocol == Protocol:
	case n.Kind == rtnl.LinkChanged && (n.LinkKind == "" || missing):
	default:
		return
	}
	c.wake()
}

func (c *Controller) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// reconcile looks, plans and does until nothing is left, and publishes what it saw. It reports
// whether all is well.
func (c *Controller) reconcile(ctx context.Context, kernel *Kernel, cfg Config, revision uint64) bool {
	old, _ := c.deps.State.Get()
	o := observation{config: cfg, revision: revision, node: old.Node}
	var err error
	for range maxRounds {
		if o.have, err = kernel.Read(cfg); err != nil {
			o.failed = []string{err.Error()}
			break
		}
		links := planLinks(cfg, Facts{Links: o.have.Links})
		c.manage(cfg, o.have, links)
		c.runClients(ctx, cfg, o.have, links)
		o.leases, o.clients = c.leases()
		want := Plan(cfg, Facts{Links: o.have.Links, Leases: o.leases, MTUs: c.former()})
		ops := Diff(o.have, want)
		c.noteMTUs(o.have.Links, ops)
		o.failed, o.left = c.do(ctx, kernel, ops), len(ops)
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
	// Watchers are woken only for news.
	state := describe(o, time.Now())
	if !reflect.DeepEqual(old, state) {
		c.deps.State.Set(state)
	}
	return len(o.failed) == 0
}

// do performs operations. One that fails does not keep the others from being done: a link without
// its route is better than no link.
func (c *Controller) do(ctx context.Context, kernel *Kernel, ops []Op) []string {
	var failed []string
	for _, op := range kernel.Bind(ops) {
		if ctx.Err() != nil {
			break
		}
		if err := op.Do(ctx); err != nil {
			failed = append(failed, err.Error())
			continue
		}
		c.deps.Log(op.String())
	}
	return failed
}

// manage tells the watcher what matters.
func (c *Controller) manage(cfg Config, have Have, links []WantLink) {
	managed := make(map[int]bool, len(links))
	for _, l := range links {
		managed[l.Index] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.managed, c.missing = managed, len(Missing(cfg, Facts{Links: have.Links})) > 0
}

// noteMTUs and former are for formerMTUs, which DryRun reads meanwhile.
func (c *Controller) noteMTUs(links []Link, ops []Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mtus.note(links, ops)
}

func (c *Controller) former() map[int]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mtus)
}

// leases returns the leases in force by the link's name, and the clients' states by its index.
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

// runClients starts a DHCP client on every link that wants one, ends the others, and tells them
// about carriers and the log about leases. A link that was replugged, renamed or got another MAC is
// another link.
func (c *Controller) runClients(ctx context.Context, cfg Config, have Have, links []WantLink) {
	keep := map[int]bool{}
	for _, w := range links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
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
		c.noteLease(cl)
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
	remembered, err := c.deps.Leases.Load(l.MAC)
	if err != nil {
		c.deps.Log(err.Error()) // it can do without
	}
	if last := c.last[l.MAC]; last != nil {
		remembered = last
	}
	// After a restart of this controller the link still has its address: it is not taken away while
	// the server is asked.
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
			c.wake()
		},
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		dhcpKeeper.Run(ctx, "DHCP on "+l.Name, func(ctx context.Context) { cl.dhcp.Run(ctx) })
	}()
	cl.stop = func() {
		cancel()
		<-done
	}
	return cl
}

// dhcpKeeper runs a client again when it has panicked: a reply of a stranger may be what it fails
// on.
var dhcpKeeper = panics.Restarter{MinBackoff: time.Second, MaxBackoff: time.Minute}

// stopClient ends a client; its lease is no longer in force, and the next plan takes the address
// away.
func (c *Controller) stopClient(index int) {
	c.clients[index].stop()
	delete(c.clients, index)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.status, index)
}

// noteLease logs and remembers a lease that is new, and forgets one that has ended.
func (c *Controller) noteLease(cl *client) {
	c.mu.Lock()
	lease, problem := c.status[cl.link.Index].Lease, c.status[cl.link.Index].Problem
	c.mu.Unlock()
	if lease == cl.lease {
		return
	}
	cl.lease, c.last[cl.link.MAC] = lease, lease
	if lease == nil {
		c.deps.Log(fmt.Sprintf("link %s: the DHCP lease has ended", cl.link.Name))
	} else {
		c.deps.Log(fmt.Sprintf("link %s: lease of %v from %v for %v", cl.link.Name, lease.Address, lease.Server, lease.Duration))
		if problem != "" && problem != cl.told { // a renewal brings the same again
			c.deps.Log(fmt.Sprintf("link %s: %s", cl.link.Name, problem))
		}
		cl.told = problem
	}
	if err := c.deps.Leases.Save(cl.link.MAC, lease); err != nil {
		c.deps.Log(err.Error())
	}
}

// MissingLinks returns the selectors of configured links that do not exist now, and the names of those
// links that could be configured.
func (c *Controller) MissingLinks(cfg Config) (missing, there []string, err error) {
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return nil, nil, err
	}
	links, err := kernel.readLinks()
	if err = errors.Join(err, kernel.Close()); err != nil {
		return nil, nil, err
	}
	for _, l := range sortedLinks(links) {
		if l.Physical() {
			there = append(there, l.Name)
		}
	}
	return Missing(cfg, Facts{Links: links}), there, nil
}

// DryRun returns what applying a configuration would do now, one line for each operation. Leases
// that are in force count; a link that would ask for one only then shows nothing of it.
func (c *Controller) DryRun(cfg Config) ([]string, error) {
	kernel, err := Open(c.deps.Files)
	if err != nil {
		return nil, err
	}
	have, err := kernel.Read(cfg)
	if err = errors.Join(err, kernel.Close()); err != nil {
		return nil, err
	}
	current, _ := c.deps.State.Get()
	leases := map[string]*dhcp.Lease{}
	for _, l := range current.Links {
		if l.DHCP != nil && l.DHCP.Lease != nil {
			leases[l.Name] = l.DHCP.Lease
		}
	}
	var out []string
	for _, op := range Diff(have, Plan(cfg, Facts{Links: have.Links, Leases: leases, MTUs: c.former()})) {
		out = append(out, op.String())
	}
	return out, nil
}
