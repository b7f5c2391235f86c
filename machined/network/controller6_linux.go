package network

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/ra"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl"
)

// autoconf is the state of the controller for DHCPv6 and router advertisements. The watcher, the
// clients and a dry run use the fields status, tables, problems, searches, flags and lost on other
// goroutines, so Controller.mu guards these fields. Only the goroutine of Run uses the remaining
// fields.
type autoconf struct {
	// The key of this map, and of the other maps with int keys, is the index of the link.
	status   map[int]dhcp6.Status
	tables   map[int]ra.Table
	problems map[int]string
	searches map[int]*routerSearch
	// flags holds the flags M and O that any router has set since the link became ready. The kernel
	// has only the flags of the last router advertisement, and another router may have set a flag
	// before.
	flags map[int]RouterFlags
	lost  bool // the kernel may have dropped router options

	clients map[int]*client6
	leaving []*client6              // clients that release their leases
	last    map[string]*dhcp6.Lease // the last active leases, by Link.leaseKey
	duid    []byte
}

// client6 is a DHCPv6 client that runs on a link.
type client6 struct {
	link     Link
	mode     dhcp6.Mode
	dhcp     *dhcp6.Client
	ready    bool
	lease    *dhcp6.Lease // the lease that was last logged
	problem  string       // the last logged problem
	reported []netip.Addr // duplicate addresses that were reported to the client
	stop     func()       // stops the client and waits for its end
	done     chan struct{}
	// forgotten means that the controller ignores the reports of the client. Controller.mu guards
	// it.
	forgotten bool
}

// routerSearch is the state of the router solicitations on a link. The kernel sends solicitations
// when a link comes up. It sends none when the carrier returns or when this process starts again,
// and the router options would then be missing.
type routerSearch struct {
	ready    bool
	sent     int
	at       time.Time // of the last solicitation
	answered bool
}

// The number and the interval of solicitations (RFC 4861 section 10).
const (
	maxSolicitations     = 3
	solicitationInterval = 4 * time.Second
)

func newAutoconf() *autoconf {
	return &autoconf{
		status: map[int]dhcp6.Status{}, tables: map[int]ra.Table{}, problems: map[int]string{}, flags: map[int]RouterFlags{},
		clients: map[int]*client6{}, last: map[string]*dhcp6.Lease{}, searches: map[int]*routerSearch{},
	}
}

// addAdvertised adds an option of a router advertisement to the table of its link. It returns true
// if the controller must act: the values in use change, or a value ends earlier than all values
// before. Otherwise the controller continues to sleep, because a host can flood the link with
// options.
func (c *Controller) addAdvertised(n rtnl.Change, now time.Time) bool {
	o, err := ra.Parse(n.Option)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.six
	if err != nil {
		s.problems[n.Index] = err.Error()
	} else if len(o.Servers)+len(o.Domains) > 0 {
		delete(s.problems, n.Index)
	}
	if search := s.searches[n.Index]; search != nil {
		search.answered = true
	}
	before := s.tables[n.Index]
	after := before.Add(o, n.Router, now)
	s.tables[n.Index] = after
	sooner := !after.Next().IsZero() && (before.Next().IsZero() || after.Next().Before(before.Next()))
	return sooner || !reflect.DeepEqual(before.Info(), after.Info())
}

// loseAdvertised records that the kernel has dropped notifications. Some of them may have contained
// router options.
func (c *Controller) loseAdvertised() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.six.lost = true
}

// latchFlags adds the router flags in have to the recorded flags, and writes the result into have.
// It forgets the recorded flags of a link that is not ready to send. Only reconcile may call it: a
// dry run runs at the same time, and its reading of the kernel can be older.
func (c *Controller) latchFlags(have Have) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.six.flags = latch(c.six.flags, have)
}

// peekFlags writes into have what latchFlags would write, and records nothing.
func (c *Controller) peekFlags(have Have) {
	c.mu.Lock()
	defer c.mu.Unlock()
	latch(c.six.flags, have)
}

// latch writes into each ready link of have its router flags together with the recorded flags, and
// returns these combined flags by link index. The result has no entry for the other links.
func latch(recorded map[int]RouterFlags, have Have) map[int]RouterFlags {
	next := map[int]RouterFlags{}
	for i, l := range have.Links {
		if !linkLocalReady(have, l) {
			continue
		}
		f := recorded[l.Index]
		f.Managed, f.Other = f.Managed || l.Router.Managed, f.Other || l.Router.Other
		next[l.Index], have.Links[i].Router = f, f
	}
	return next
}

// observe6 returns the active DHCPv6 leases and the advertised values of the links. It also updates
// the tables: it removes expired values, and forgets the links that accept no router
// advertisements. For a link that has become ready, it starts the solicitations again.
func (c *Controller) observe6(have Have, links []WantLink, now time.Time) observation6 {
	out := observation6{leases: map[string]*dhcp6.Lease{}, routers: map[string]ra.Info{}, clients: map[int]dhcp6.Status{}, problems: map[int]string{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.six
	for index, cl := range s.clients {
		if st, ok := s.status[index]; ok {
			out.clients[index] = st
			if st.Lease != nil {
				out.leases[cl.link.Name] = st.Lease
			}
		}
	}
	accepts := map[int]bool{}
	for _, w := range links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
		if !w.AcceptRA || i < 0 {
			continue
		}
		accepts[w.Index] = true
		search := s.searches[w.Index]
		if search == nil {
			search = &routerSearch{}
			s.searches[w.Index] = search
		}
		if ready := linkLocalReady(have, have.Links[i]); ready != search.ready || s.lost {
			// at is preserved, because it limits the rate of solicitations
			*search = routerSearch{ready: ready, at: search.at}
		}
		s.tables[w.Index] = s.tables[w.Index].Expire(now)
		if info := s.tables[w.Index].Info(); len(info.Servers)+len(info.Search) > 0 {
			out.routers[w.Name] = info
		}
		if p := s.problems[w.Index]; p != "" {
			out.problems[w.Index] = p
		}
	}
	s.lost = false
	for index := range s.tables {
		if !accepts[index] {
			delete(s.tables, index)
			delete(s.problems, index)
		}
	}
	for index := range s.searches {
		if !accepts[index] {
			delete(s.searches, index)
		}
	}
	return out
}

// solicitRouters sends a solicitation on each link on which a solicitation is due.
func (c *Controller) solicitRouters(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for index, s := range c.six.searches {
		if due, ok := s.due(); ok && !now.Before(due) {
			s.sent, s.at = s.sent+1, now
			// the error is ignored: the next solicitation repeats this solicitation
			_ = solicit(index)
		}
	}
}

// due returns the time of the next solicitation. It returns false if no further solicitation is
// necessary.
func (s *routerSearch) due() (time.Time, bool) {
	if !s.ready || s.answered || s.sent == maxSolicitations {
		return time.Time{}, false
	}
	return s.at.Add(solicitationInterval), true
}

// nextAdvertised returns the time until the next solicitation or the next end of an advertised
// value, at most resyncPeriod.
func (c *Controller) nextAdvertised(now time.Time) time.Duration {
	wait := resyncPeriod
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.six.searches {
		if due, ok := s.due(); ok {
			wait = min(wait, max(due.Sub(now), 0))
		}
	}
	for _, t := range c.six.tables {
		if next := t.Next(); !next.IsZero() {
			wait = min(wait, max(next.Sub(now), 0))
		}
	}
	return wait
}

// runClients6 starts a DHCPv6 client on each Ethernet link that needs a client, and ends the
// clients of all other links. It passes changes of the links to the clients and records their
// leases.
func (c *Controller) runClients6(ctx context.Context, cfg Config, have Have, links []WantLink) {
	keep := map[int]bool{}
	for _, w := range links {
		i := slices.IndexFunc(have.Links, func(l Link) bool { return l.Index == w.Index })
		if i < 0 || w.DHCP6 == nil || !have.Links[i].Ethernet {
			continue
		}
		l := have.Links[i]
		keep[l.Index] = true
		cl := c.six.clients[l.Index]
		if cl != nil && (cl.link.Name != l.Name || cl.link.MAC != l.MAC || cl.mode != *w.DHCP6) {
			c.stopClient6(l.Index)
			cl = nil
		}
		if cl == nil {
			cl = c.startClient6(ctx, l, *w.DHCP6, have)
			c.six.clients[l.Index] = cl
		}
		cl.dhcp.SetHostname(cfg.Hostname)
		if ready := linkLocalReady(have, l); ready != cl.ready {
			cl.ready = ready
			cl.dhcp.SetReady(ready)
		}
		c.reportDuplicates(cl, have)
		c.recordLease6(cl)
	}
	for index, cl := range c.six.clients {
		if keep[index] {
			continue
		}
		// The client releases its lease only if it can still reach the server. It cannot if the
		// link is gone. It also cannot if the link has lost its carrier, and with the carrier the
		// flags that select DHCPv6.
		if cl.ready && slices.ContainsFunc(have.Links, func(l Link) bool { return l.Index == index && linkLocalReady(have, l) }) {
			c.six.leaving = append(c.six.leaving, cl)
			c.forgetClient6(index)
			c.saveLease6(cl, nil)
			continue
		}
		c.stopClient6(index)
	}
}

// reportDuplicates reports to a client each address of its link that another machine has, once.
func (c *Controller) reportDuplicates(cl *client6, have Have) {
	var found []netip.Addr
	for a, unfit := range have.Unfit {
		if a.Index == cl.link.Index && unfit == "duplicate" {
			found = append(found, a.Prefix.Addr())
			if !slices.Contains(cl.reported, a.Prefix.Addr()) {
				cl.dhcp.Duplicate(a.Prefix.Addr())
			}
		}
	}
	cl.reported = found
}

// startClient6 starts a DHCPv6 client on a link. The client first confirms the last active lease,
// or else the stored lease.
func (c *Controller) startClient6(ctx context.Context, l Link, mode dhcp6.Mode, have Have) *client6 {
	cl := &client6{link: l, mode: mode, done: make(chan struct{})}
	stored, err := c.deps.Leases.Load6(l.leaseKey())
	if err != nil {
		c.deps.Log(err.Error()) // the client also works without a stored lease
	}
	if last := c.six.last[l.leaseKey()]; last != nil {
		stored = last
	}
	// After a restart of the controller, the link may still have the addresses of the lease. The
	// addresses then stay in use while the client contacts the server.
	inForce := stored != nil && have.uses(l, stored.Addresses)
	if inForce {
		cl.lease = stored
		c.mu.Lock()
		c.six.status[l.Index] = dhcp6.Status{Mode: mode, Phase: dhcp6.Confirming, Lease: stored, Since: time.Now()}
		c.mu.Unlock()
	}
	cl.dhcp = dhcp6.New(dhcp6.Options{
		Link: l.Name, Index: l.Index, DUID: c.machineDUID(l, have), IAID: dhcp6.IAID(l.leaseKey()), Mode: mode,
		StoredLease: stored, InForce: inForce, Random: rand.Uint32,
		Changed: func(st dhcp6.Status) { c.setStatus6(cl, st) },
	})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(cl.done)
		dhcpRestarter.Run(ctx, "DHCPv6 on "+l.Name, func(ctx context.Context) { cl.dhcp.Run(ctx) })
	}()
	cl.stop = func() {
		cancel()
		<-cl.done
	}
	return cl
}

// setStatus6 records the status of a client and wakes the loop. It ignores the status of a
// forgotten client, which runs only to release its lease.
func (c *Controller) setStatus6(cl *client6, st dhcp6.Status) {
	c.mu.Lock()
	if !cl.forgotten {
		c.six.status[cl.link.Index] = st
	}
	c.mu.Unlock()
	c.changes.Wake()
}

// uses reports whether the leased addresses are all on a link. It returns false for an empty list.
func (h Have) uses(l Link, leased []dhcp6.Address) bool {
	for _, a := range leased {
		if !slices.ContainsFunc(h.Addresses, func(o Address) bool { return o.Index == l.Index && o.Prefix.Addr() == a.Addr }) {
			return false
		}
	}
	return len(leased) > 0
}

// machineDUID returns the DUID of the machine: the stored DUID, or else the DUID of the hardware
// with the lowest permanent MAC. It stores the result. The DUID is the same after each boot, even
// on a machine without a disk. On a machine with a disk, it also survives the replacement of a
// network card.
func (c *Controller) machineDUID(l Link, have Have) []byte {
	if c.six.duid != nil {
		return c.six.duid
	}
	id, err := c.deps.Leases.DUID()
	if err != nil {
		c.deps.Log(err.Error())
	}
	if id == nil {
		id = hardwareDUID(l, have.Links)
		if err := c.deps.Leases.SaveDUID(id); err != nil {
			c.deps.Log(err.Error())
		}
	}
	c.six.duid = id
	return id
}

// hardwareDUID returns the DUID of the physical link with the lowest permanent MAC. Without a
// physical link, it returns the DUID of l.
func hardwareDUID(l Link, links []Link) []byte {
	var lowest net.HardwareAddr
	for _, o := range links {
		mac, err := net.ParseMAC(o.permanentMAC())
		if err == nil && o.Physical() && (lowest == nil || bytes.Compare(mac, lowest) < 0) {
			lowest = mac
		}
	}
	if lowest == nil {
		// the error is impossible: the MAC comes from the kernel
		lowest, _ = net.ParseMAC(l.permanentMAC())
	}
	return dhcp6.DUID(lowest)
}

// stopClient6 stops a client without the release of its lease. The lease is then no longer active,
// so the next plan removes its addresses.
func (c *Controller) stopClient6(index int) {
	c.six.clients[index].stop()
	c.forgetClient6(index)
}

// forgetClient6 removes a client from the active clients, but does not stop the client.
func (c *Controller) forgetClient6(index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.six.clients[index].forgotten = true
	delete(c.six.clients, index)
	delete(c.six.status, index)
}

// releaseLeases6 tells each leaving client to release its lease, and forgets the leaving clients
// that have ended.
func (c *Controller) releaseLeases6() {
	c.six.leaving = slices.DeleteFunc(c.six.leaving, func(cl *client6) bool {
		select {
		case <-cl.done:
			return true
		default:
			cl.dhcp.Release()
			return false
		}
	})
}

// stopClients6 stops all clients, and the clients that release their leases.
func (c *Controller) stopClients6() {
	for index := range c.six.clients {
		c.stopClient6(index)
	}
	for _, cl := range c.six.leaving {
		cl.stop()
	}
	c.six.leaving = nil
}

// recordLease6 logs the problems and the lease of a client when they change. It stores a new lease.
// If the lease has ended, it removes the stored lease.
func (c *Controller) recordLease6(cl *client6) {
	c.mu.Lock()
	st := c.six.status[cl.link.Index]
	c.mu.Unlock()
	if st.Problem != "" && st.Problem != cl.problem {
		c.deps.Log(fmt.Sprintf("link %s: %s", cl.link.Name, st.Problem))
	}
	cl.problem = st.Problem
	if st.Lease == cl.lease {
		return
	}
	switch l := st.Lease; {
	case l == nil:
		c.deps.Log(fmt.Sprintf("link %s: the DHCPv6 lease has ended", cl.link.Name))
	case len(l.Addresses)+len(l.Prefixes) == 0:
		c.deps.Log(fmt.Sprintf("link %s: settings from DHCPv6", cl.link.Name))
	default:
		var what []any
		for _, a := range l.Addresses {
			what = append(what, a.Addr)
		}
		for _, p := range l.Prefixes {
			what = append(what, p.Prefix)
		}
		c.deps.Log(fmt.Sprintf("link %s: DHCPv6 lease of %v", cl.link.Name, what))
	}
	c.saveLease6(cl, st.Lease)
}

// saveLease6 makes l the last active lease of the client's link, and stores it. If l is nil, it
// removes the stored lease.
func (c *Controller) saveLease6(cl *client6, l *dhcp6.Lease) {
	cl.lease, c.six.last[cl.link.leaseKey()] = l, l
	if err := c.deps.Leases.Save6(cl.link.leaseKey(), l); err != nil {
		c.deps.Log(err.Error())
	}
}
