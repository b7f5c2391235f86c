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

// field is where an operator changes the pools.
const field = "Cluster.spec.networks.loadBalancer.pools"

// Service is what counts of a Service.
type Service struct {
	Key      string // namespace/name
	Created  time.Time
	Managed  bool // of type LoadBalancer, and not another implementation's
	Ending   bool // it is being deleted: it keeps what it has, and gets nothing new
	Families []corev1.IPFamily
	DualOnly bool         // it is not content with one family of two
	Pool     string       // the pool that it asks for; empty: any that is for everybody
	Wanted   []netip.Addr // the addresses that it asks for, one of a family at most
	WantedBy string       // where it does: the annotation, or the field
	Explicit bool         // its class says that it is ours, and nothing else's
	// MachinePort says that one of its ports is one that machines answer at.
	MachinePort bool
	Invalid     string       // what is wrong with how it asks; empty when nothing is
	Has         []netip.Addr // what its status says
}

// Input is all that the addresses depend on.
type Input struct {
	Now      time.Time
	Pools    []nodespec.Pool
	Services []Service
	Machines []netip.Addr // no Service may have them
	// machines say that they have them: no Service gets one, and none loses one for it, because a
	// machine can say anything
	Nodes []netip.Addr
}

// Decision is what a Service of ours should have: the addresses in the order of its families, and
// why one is missing.
type Decision struct {
	Key       string
	Addresses []netip.Addr
	Problems  []Problem
	// Unassigned says that the Service is left as it is: where there is no pool, something else in the
	// cluster may give it addresses.
	Unassigned bool
	// Again is when the Service is to be looked at again, though nothing changes; zero: never.
	Again time.Time
}

// Problem is a reason, in one word as Events have it, and a sentence with what to do.
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

// grace is how long a Service without a class waits for another load balancer, where there is no
// pool, before it is told that there is none.
const grace = 30 * time.Second

// leave decides about a Service of ours where there is no pool.
func (s Service) leave(now time.Time) Decision {
	d := Decision{Key: s.Key, Unassigned: true}
	switch due := s.Created.Add(grace); {
	case s.Ending || len(s.Has) > 0:
	case !s.Explicit && now.Before(due):
		d.Again = due
	case s.Explicit:
		d.Problems = []Problem{{noPool, fmt.Sprintf("the Service gets no address: there is no pool; add one to %s", field)}}
	default:
		d.Problems = []Problem{{noPool, fmt.Sprintf("the Service has no address: there is no pool in %s, and no other load balancer has given it one; add a pool, or install a load balancer", field)}}
	}
	return d
}

// Step decides about all Services of ours, the oldest first. Pure: the same world gives the same
// decisions, and a world in which they were carried out gives them again.
//
// What a Service has is kept before anything is given, and what is asked for by address is given
// before what is not. A Service that asks for something else than it has keeps that until it gets
// the other.
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
			left = append(left, s.leave(w.Now))
		}
		return left
	}
	shares := make([]map[corev1.IPFamily]share, len(ours))
	for i, s := range ours {
		shares[i] = a.keep(s)
		for f, kept := range shares[i] {
			switch {
			case !slices.Contains(w.Nodes, kept.address):
			// what is sent to the machine's own port would be refused, or come to the Service
			case s.MachinePort:
				a.taken[kept.address] = "a machine"
				delete(shares[i], f)
			default:
				kept.problem = Problem{ofMachine, fmt.Sprintf("a machine says that it has the address %s, too: give the machine another one, or take this one out of %s", kept.address, field)}
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
					shares[i][f] = a.give(s, f, shares[i][f])
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

// share is what a Service gets of one family.
type share struct {
	address netip.Addr // not valid: none
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

// wanted is the address of a family that the Service asks for, if any.
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

// allocation is the addresses while they are given out. Within a step none becomes free.
type allocation struct {
	pools []nodespec.Pool
	taken map[netip.Addr]string // who has it
	// by the first address of a range: all before it are taken; not valid: the range is full
	next map[netip.Addr]netip.Addr
}

// keep takes over what a Service has, one address of a family.
func (a allocation) keep(s Service) map[corev1.IPFamily]share {
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

// give finds an address of the family for a Service that has one already or not.
func (a allocation) give(s Service, f corev1.IPFamily, has share) share {
	if s.Invalid != "" {
		return has
	}
	if w := s.wanted(f); w.IsValid() {
		return a.giveWanted(s, w, has)
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

// giveWanted gives the address that a Service asks for.
func (a allocation) giveWanted(s Service, w netip.Addr, has share) share {
	p, pooled := a.poolOf(w)
	owner := a.taken[w]
	switch {
	case has.address == w:
		return has
	case !pooled || s.Pool != "" && s.Pool != p.Name:
		where := "no pool holds it"
		if pooled {
			where = fmt.Sprintf("it is of the pool %s, not of %s", p.Name, s.Pool)
		}
		return share{has.address, Problem{notInPool, fmt.Sprintf("the address %s cannot be given: %s; change %s, or the pools in %s", w, where, s.WantedBy, field)}}
	case owner != "":
		return share{has.address, Problem{addressUsed, fmt.Sprintf("the address %s cannot be given: %s has it; ask for another one with %s", w, owner, s.WantedBy)}}
	}
	a.taken[w] = "the Service " + s.Key
	return share{address: w}
}

// explain says why a Service gets no address of the family.
func (a allocation) explain(reason string, s Service, f corev1.IPFamily, names []string) Problem {
	var all []string
	for _, p := range a.pools {
		all = append(all, p.Name)
	}
	text := ""
	switch {
	case reason == poolFull:
		text = fmt.Sprintf("no %s address is free in %s: enlarge it in %s, or delete a Service that needs none", f, strings.Join(names, ", "), field)
	case reason == noFamily:
		text = fmt.Sprintf("no pool that this Service may use has %s addresses: add a range to %s, or take %s out of the Service's ipFamilies", f, field, f)
	case s.Pool != "":
		text = fmt.Sprintf("there is no pool %q, only %s: change the annotation %s, or add the pool to %s", s.Pool, strings.Join(all, ", "), PoolAnnotation, field)
	default:
		text = fmt.Sprintf("every pool is for Services that ask for it (onRequest): name one of %s in the annotation %s", strings.Join(all, ", "), PoolAnnotation)
	}
	return Problem{reason, text}
}

// poolOf finds the pool that an address is of.
func (a allocation) poolOf(address netip.Addr) (nodespec.Pool, bool) {
	i := slices.IndexFunc(a.pools, func(p nodespec.Pool) bool { return p.Contains(address) })
	if i < 0 {
		return nodespec.Pool{}, false
	}
	return a.pools[i], true
}

// free is the first free address of a range, and not valid when there is none. It looks at each
// taken address once in a step.
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
