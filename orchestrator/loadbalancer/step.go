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

// poolsField is the configuration field of the pools.
const poolsField = "Cluster.spec.networks.loadBalancer.pools"

// Service is the relevant part of a Service object.
type Service struct {
	Key      string // namespace/name
	Created  time.Time
	Managed  bool // of type LoadBalancer, and not of another implementation
	Ending   bool // in deletion: it retains its addresses and gets no new addresses
	Families []corev1.IPFamily
	DualOnly bool         // it requires both families
	Pool     string       // the requested pool; empty: any pool that is not only on request
	Wanted   []netip.Addr // the requested addresses, of different families
	WantedBy string       // the source of the request: the annotation or the field
	Explicit bool         // its class selects this load balancer explicitly
	// MachinePort: the Service has a port that the machines use too.
	MachinePort bool
	Invalid     string       // the error of its request, or empty
	Has         []netip.Addr // the addresses in its status
}

// Input is all input of the assignment.
type Input struct {
	Now      time.Time
	Pools    []nodespec.Pool
	Services []Service
	Machines []netip.Addr // no Service may have them
	// addresses that machines claim in their Nodes: no Service gets such an address, and no Service
	// loses its address because of the claim, because a machine can claim any address
	Nodes []netip.Addr
}

// Decision is the desired state of a managed Service: the addresses in the order of its families,
// and the problems with missing addresses.
type Decision struct {
	Key       string
	Addresses []netip.Addr
	Problems  []Problem
	// Unassigned: the Service stays unchanged, because without pools another load balancer may
	// assign its addresses.
	Unassigned bool
	// Again is the time of the next check without a change; zero: never.
	Again time.Time
}

// Problem is the reason of an Event, and a sentence with a hint.
type Problem struct{ Reason, Message string }

// The reasons.
const (
	badRequest  = "BadRequest"
	noPool      = "NoPool"
	noFamily    = "NoPoolOfFamily"
	poolFull    = "PoolFull"
	notInPool   = "AddressNotInPool"
	addressUsed = "AddressInUse"
	ofMachine   = "AddressOfMachine"
)

// gracePeriod is how long a Service without a class waits for another load balancer, if no pool
// exists, before an Event reports the missing pool.
const gracePeriod = 30 * time.Second

// withoutPools decides about a managed Service if no pool exists.
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

// Step decides about all managed Services, the oldest first. It is pure: the same input gives the
// same decisions, and so does the input after the decisions were performed.
//
// Services retain their addresses before new addresses are assigned, and requests for particular
// addresses precede all others. A Service that requests another address than it has retains its
// address until it gets the other.
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
			// the machine would reject packets to its own port, or the Service would get them
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

// share is a Service's address of a family.
type share struct {
	address netip.Addr // invalid: none
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

// wanted returns the requested address of a family, if any.
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

// allocation is the state of the assignment within a step, in which no address becomes free.
type allocation struct {
	pools []nodespec.Pool
	taken map[netip.Addr]string // the owner
	// by the first address of a range: all addresses before it are taken; invalid: the range is
	// full
	next map[netip.Addr]netip.Addr
}

// retain adopts the addresses that a Service has, at most one of each family.
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

// assign finds an address of the family for a Service; has is its present address, if any.
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

// assignWanted assigns the requested address.
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

// explain returns the problem of a Service without an address of the family.
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

// poolOf returns the pool of an address.
func (a allocation) poolOf(address netip.Addr) (nodespec.Pool, bool) {
	i := slices.IndexFunc(a.pools, func(p nodespec.Pool) bool { return p.Contains(address) })
	if i < 0 {
		return nodespec.Pool{}, false
	}
	return a.pools[i], true
}

// free returns the first free address of a range, or an invalid address. It visits each taken
// address once in a step.
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
