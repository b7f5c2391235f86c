package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// poolsField is the path of the pools in the configuration, for messages.
const poolsField = "Cluster.spec.networks.loadBalancer.pools"

// Service is the part of a Service object that Step uses.
type Service struct {
	Key      string // namespace/name
	Created  time.Time
	Managed  bool // this load balancer is responsible for it (IsManaged)
	Ending   bool // in deletion: it retains its addresses and gets no new ones
	Families []corev1.IPFamily
	// DualOnly means that each missing family is a problem. Without it, a missing pool of one
	// family is no problem if the Service has an address of the other family.
	DualOnly bool
	Pool     string       // the requested pool; empty: any pool without onRequest
	Wanted   []netip.Addr // the requested addresses, at most one of each family
	// WantedBy names the annotation or field with the request, for messages.
	WantedBy string
	Explicit bool // its loadBalancerClass is Class
	// MachinePort means that the Service has a port on which the machines themselves listen.
	MachinePort bool
	Invalid     string       // the error in its request, or empty
	Has         []netip.Addr // the addresses in its status
}

// Input is the input of Step.
type Input struct {
	Now      time.Time
	Pools    []nodespec.Pool
	Services []Service
	Machines []netip.Addr // addresses that no Service may have
	// Nodes are the addresses that machines report in their Node objects. No Service gets such an
	// address. A Service that already has such an address retains it, because a machine can report
	// any address.
	Nodes []netip.Addr
}

// Decision is the wanted state of a managed Service: its addresses in the order of its families,
// and the reasons for missing addresses.
type Decision struct {
	Key       string
	Addresses []netip.Addr
	Problems  []Problem
	// Unassigned means that the status of the Service must stay unchanged, because no pool is
	// configured. Another load balancer may assign its addresses.
	Unassigned bool
	// Again is the time at which Step has to run again even without a change. It is zero if that is
	// not necessary.
	Again time.Time
}

// Problem is the reason and the message of an Event. The message states the problem and a remedy.
type Problem struct{ Reason, Message string }

// These are the reasons of Events about missing addresses.
const (
	badRequest  = "BadRequest"
	noPool      = "NoPool"
	noFamily    = "NoPoolOfFamily"
	poolFull    = "PoolFull"
	notInPool   = "AddressNotInPool"
	addressUsed = "AddressInUse"
	ofMachine   = "AddressOfMachine"
)

// gracePeriod is how old a Service without a class must be before an Event reports that no pool is
// configured. Before that age, another load balancer may still assign an address.
const gracePeriod = 30 * time.Second

// withoutPools returns the decision about a managed Service if no pool is configured.
func (s Service) withoutPools(now time.Time) Decision {
	d := Decision{Key: s.Key, Unassigned: true}
	switch due := s.Created.Add(gracePeriod); {
	case s.Ending || len(s.Has) > 0:
	case !s.Explicit && now.Before(due):
		d.Again = due
	case s.Explicit:
		d.Problems = []Problem{{noPool, fmt.Sprintf("the Service gets no address: no pool is configured; add a pool to %s", poolsField)}}
	default:
		d.Problems = []Problem{{noPool, fmt.Sprintf("the Service has no address: %s has no pool, and no other load balancer has assigned an address; add a pool, or install a load balancer", poolsField)}}
	}
	return d
}

// Step returns a decision for each managed Service, the oldest first. It is pure: the same input
// gives the same decisions. It gives the same decisions again after they were written to the status
// of the Services.
//
// Step works in this order: Services retain the addresses that they have, then requests for
// particular addresses are served, then all other requests. A Service that requests another address
// than its present one retains its present address until it gets the requested one.
func Step(w Input) []Decision {
	a := allocation{pools: w.Pools, taken: map[netip.Addr]string{}, next: map[netip.Addr]netip.Addr{}}
	for _, m := range w.Machines {
		a.taken[m] = "a machine"
	}
	var ours []Service
	for _, s := range w.Services {
		if s.Managed {
			ours = append(ours, s)
			continue
		}
		for _, h := range s.Has {
			a.taken[h] = "the Service " + s.Key
		}
	}
	slices.SortFunc(ours, func(x, y Service) int { return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Key, y.Key)) })
	if len(w.Pools) == 0 {
		var left []Decision
		for _, s := range ours {
			left = append(left, s.withoutPools(w.Now))
		}
		return left
	}
	shares := make([]map[corev1.IPFamily]share, len(ours))
	for i, s := range ours {
		shares[i] = a.retain(s)
		for f, kept := range shares[i] {
			switch {
			case !slices.Contains(w.Nodes, kept.address):
			// A machine and the Service would compete for packets to this address and port, so the
			// Service loses the address.
			case s.MachinePort:
				a.taken[kept.address] = "a machine"
				delete(shares[i], f)
			default:
				kept.problem = Problem{ofMachine, fmt.Sprintf("a machine has the address %s too: give the machine another address, or remove this address from %s", kept.address, poolsField)}
				shares[i][f] = kept
			}
		}
	}
	for _, n := range w.Nodes {
		a.taken[n] = cmp.Or(a.taken[n], "a machine")
	}
	for _, byAddress := range []bool{true, false} {
		for i, s := range ours {
			for _, f := range s.Families {
				if !s.Ending && (s.wanted(f).IsValid() == byAddress) {
					shares[i][f] = a.assign(s, f, shares[i][f])
				}
			}
		}
	}
	var decisions []Decision
	for i, s := range ours {
		decisions = append(decisions, s.decide(shares[i]))
	}
	return decisions
}

// share is the address of a Service in one family, and the problem with it.
type share struct {
	address netip.Addr // invalid if the Service has no address
	problem Problem
}

func (s Service) decide(shares map[corev1.IPFamily]share) Decision {
	d := Decision{Key: s.Key}
	if s.Invalid != "" {
		d.Problems = append(d.Problems, Problem{badRequest, s.Invalid})
	}
	for _, f := range s.Families {
		if a := shares[f].address; a.IsValid() {
			d.Addresses = append(d.Addresses, a)
		}
	}
	for _, f := range s.Families {
		p := shares[f].problem
		content := p.Reason == noFamily && !s.DualOnly && len(d.Addresses) > 0
		if p.Reason != "" && !content && !slices.Contains(d.Problems, p) {
			d.Problems = append(d.Problems, p)
		}
	}
	return d
}

// wanted returns the requested address of a family. The result is invalid if the Service requests
// no address of this family.
func (s Service) wanted(f corev1.IPFamily) netip.Addr {
	for _, w := range s.Wanted {
		if familyOf(w) == f {
			return w
		}
	}
	return netip.Addr{}
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// allocation records the addresses that are taken within one call of Step. A taken address does not
// become free again within the call.
type allocation struct {
	pools []nodespec.Pool
	taken map[netip.Addr]string // the owner of each taken address, for messages
	// next maps the first address of a range to the next address to try: all addresses of the range
	// before that are taken. An invalid address means that the range is full.
	next map[netip.Addr]netip.Addr
}

// retain returns the addresses that a Service may retain, at most one of each family, and marks
// them as taken. It omits an address that is taken already, is in no pool, or is not of a family of
// the Service.
func (a allocation) retain(s Service) map[corev1.IPFamily]share {
	shares := map[corev1.IPFamily]share{}
	for _, h := range s.Has {
		f := familyOf(h)
		_, pooled := a.poolOf(h)
		if a.taken[h] == "" && pooled && slices.Contains(s.Families, f) && !shares[f].address.IsValid() {
			a.taken[h] = "the Service " + s.Key
			shares[f] = share{address: h}
		}
	}
	return shares
}

// assign returns the address of the family for a Service, and a problem if the Service does not get
// what it requests. The parameter has is its present address, if any.
func (a allocation) assign(s Service, f corev1.IPFamily, has share) share {
	if s.Invalid != "" {
		return has
	}
	if w := s.wanted(f); w.IsValid() {
		return a.assignWanted(s, w, has)
	}
	if has.address.IsValid() {
		if p, _ := a.poolOf(has.address); s.Pool == "" || s.Pool == p.Name {
			return has
		}
	}
	var names []string
	found, reason := false, noPool
	for _, p := range a.pools {
		if s.Pool != p.Name && (s.Pool != "" || p.OnRequest) {
			continue
		}
		found = true
		for _, r := range p.Ranges {
			if familyOf(r.First) != f {
				continue
			}
			if free := a.free(r); free.IsValid() {
				a.taken[free] = "the Service " + s.Key
				return share{address: free}
			}
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	if found {
		reason = noFamily
	}
	if len(names) > 0 {
		reason = poolFull
	}
	return share{has.address, a.explain(reason, s, f, names)}
}

// assignWanted assigns address w, which the Service requests. If that is impossible, it returns the
// present address with a problem.
func (a allocation) assignWanted(s Service, w netip.Addr, has share) share {
	p, pooled := a.poolOf(w)
	owner := a.taken[w]
	switch {
	case has.address == w:
		return has
	case !pooled || s.Pool != "" && s.Pool != p.Name:
		where := "no pool contains it"
		if pooled {
			where = fmt.Sprintf("it belongs to pool %s, not to %s", p.Name, s.Pool)
		}
		return share{has.address, Problem{notInPool, fmt.Sprintf("the address %s cannot be assigned: %s; change %s, or the pools in %s", w, where, s.WantedBy, poolsField)}}
	case owner != "":
		return share{has.address, Problem{addressUsed, fmt.Sprintf("the address %s cannot be assigned: %s has it; request another address with %s", w, owner, s.WantedBy)}}
	}
	a.taken[w] = "the Service " + s.Key
	return share{address: w}
}

// explain returns the problem of a Service for which assign found no address. The parameter names
// lists the pools that have the family and are full.
func (a allocation) explain(reason string, s Service, f corev1.IPFamily, names []string) Problem {
	var all []string
	for _, p := range a.pools {
		all = append(all, p.Name)
	}
	text := ""
	switch {
	case reason == poolFull:
		text = fmt.Sprintf("no %s address is free in %s: enlarge it in %s, or delete a Service that needs none", f, strings.Join(names, ", "), poolsField)
	case reason == noFamily:
		text = fmt.Sprintf("no pool that this Service may use has %s addresses: add a range to %s, or remove %s from the Service's ipFamilies", f, poolsField, f)
	case s.Pool != "":
		text = fmt.Sprintf("pool %q does not exist, only %s: change the annotation %s, or add the pool to %s", s.Pool, strings.Join(all, ", "), PoolAnnotation, poolsField)
	default:
		text = fmt.Sprintf("every pool is assigned only on request (onRequest): name one of the pools %s in the annotation %s", strings.Join(all, ", "), PoolAnnotation)
	}
	return Problem{reason, text}
}

// poolOf returns the pool that contains an address. The bool is false if no pool contains it.
func (a allocation) poolOf(address netip.Addr) (nodespec.Pool, bool) {
	i := slices.IndexFunc(a.pools, func(p nodespec.Pool) bool { return p.Contains(address) })
	if i < 0 {
		return nodespec.Pool{}, false
	}
	return a.pools[i], true
}

// free returns the first free address of a range, or an invalid address if the range is full. It
// remembers its position, so a call of Step visits each taken address only once.
func (a allocation) free(r nodespec.Range) netip.Addr {
	at, known := a.next[r.First]
	if !known {
		at = r.First
	}
	for at.IsValid() && a.taken[at] != "" {
		if at == r.Last {
			at = netip.Addr{}
		} else {
			at = at.Next()
		}
	}
	a.next[r.First] = at
	return at
}
