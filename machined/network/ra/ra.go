// Package ra holds the resolvers and search domains of router advertisements (RFC 8106). The kernel
// itself receives and checks advertisements, and takes addresses and routes from them; it passes
// the options to user space (RTM_NEWNDUSEROPT). The package parses their content and tracks their
// lifetimes. It is pure: it has no clock and no socket.
package ra

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/network/domains"
)

// Types of options (RFC 8106 section 5).
const (
	typeServers = 25 // RDNSS
	typeDomains = 31 // DNSSL
)

// Limits of a table, which any host on the link can fill: the list is then replaced from its entry
// with the shortest remaining lifetime (RFC 8106 section 6.3).
const (
	maxServers = 16
	maxDomains = domains.Max
)

// forever is the lifetime without an end, in seconds.
const forever = 0xffffffff

// Option is a parsed option.
type Option struct {
	Servers  []netip.Addr // of an RDNSS option
	Domains  []string     // of a DNSSL option
	Lifetime time.Duration
	Forever  bool // the lifetime has no end
}

// Parse parses an option with its header. An unknown type is an empty Option. The error describes
// the first unusable part; the rest is valid nevertheless.
func Parse(b []byte) (o Option, err error) {
	if len(b) < 8 || len(b) != int(b[1])*8 {
		return Option{}, errors.New("router advertisement: an option has a wrong length")
	}
	seconds := binary.BigEndian.Uint32(b[4:8])
	o.Forever, o.Lifetime = seconds == forever, time.Duration(seconds)*time.Second
	switch b[0] {
	case typeServers:
		if len(b)%16 != 8 {
			return Option{}, errors.New("router advertisement: resolvers (RDNSS): the length is not one of addresses")
		}
		for a := range slices.Chunk(b[8:], 16) {
			addr := netip.AddrFrom16([16]byte(a))
			switch {
			case !usable(addr) && err == nil:
				err = fmt.Errorf("router advertisement: resolvers (RDNSS): %s is not usable", addr)
			case !usable(addr):
			case !slices.Contains(o.Servers, addr) && len(o.Servers) < maxServers:
				o.Servers = append(o.Servers, addr)
			}
		}
	case typeDomains:
		if o.Domains, err = domains.Parse(b[8:]); err != nil {
			err = fmt.Errorf("router advertisement: search domains (DNSSL): %w", err)
		}
	default:
		return Option{}, nil
	}
	return o, err
}

// usable reports whether an address can be that of a resolver of this machine and its pods. A
// link-local address needs a zone, which pods do not have.
func usable(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.IsGlobalUnicast()
}

// entry is a value of a router with its end.
type entry[T comparable] struct {
	value   T
	router  netip.Addr
	expires time.Time // zero: never
}

// Table holds the current values of a link, in the order of their arrival. The zero Table is empty.
// Several routers can advertise the same value: it stays until the last router withdraws it.
type Table struct {
	servers []entry[netip.Addr]
	domains []entry[string]
}

// Add returns the table after an option of a router. A lifetime of 0 withdraws the values.
func (t Table) Add(o Option, router netip.Addr, now time.Time) Table {
	expires := now.Add(o.Lifetime)
	if o.Forever {
		expires = time.Time{}
	}
	t = t.Expire(now)
	for _, s := range o.Servers {
		t.servers = set(t.servers, entry[netip.Addr]{s, router, expires}, o.Lifetime == 0, maxServers)
	}
	for _, d := range o.Domains {
		t.domains = set(t.domains, entry[string]{d, router, expires}, o.Lifetime == 0, maxDomains)
	}
	return t
}

// set adds, refreshes or removes an entry. The list has at most limit entries.
func set[T comparable](list []entry[T], e entry[T], remove bool, limit int) []entry[T] {
	i := slices.IndexFunc(list, func(o entry[T]) bool { return o.value == e.value && o.router == e.router })
	switch {
	case remove:
		if i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		return list
	case i >= 0:
		list[i] = e
		return list
	case len(list) >= limit:
		i = slices.Index(list, slices.MinFunc(list, earlier))
		if earlier(e, list[i]) <= 0 {
			return list
		}
		list = slices.Delete(list, i, i+1)
	}
	return append(list, e)
}

// earlier compares the ends of two entries.
func earlier[T comparable](a, b entry[T]) int {
	switch {
	case a.expires.Equal(b.expires):
		return 0
	case a.expires.IsZero():
		return 1
	case b.expires.IsZero():
		return -1
	}
	return a.expires.Compare(b.expires)
}

// Expire returns the table without the entries that have ended. The result shares no memory with t.
func (t Table) Expire(now time.Time) Table {
	return Table{servers: alive(t.servers, now), domains: alive(t.domains, now)}
}

func alive[T comparable](list []entry[T], now time.Time) (out []entry[T]) {
	for _, e := range list {
		if e.expires.IsZero() || now.Before(e.expires) {
			out = append(out, e)
		}
	}
	return out
}

// Next returns the time at which the next entry ends; the zero time if none ends.
func (t Table) Next() (next time.Time) {
	earliest := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, e := range t.servers {
		earliest(e.expires)
	}
	for _, e := range t.domains {
		earliest(e.expires)
	}
	return next
}

// Info are the values of a link in use.
type Info struct {
	Servers []netip.Addr `json:"servers,omitempty"` // resolvers (RDNSS)
	Search  []string     `json:"search,omitempty"`  // search domains (DNSSL)
	Routers []netip.Addr `json:"routers,omitempty"` // the routers that advertise them
}

// Info returns the distinct values of the table.
func (t Table) Info() (out Info) {
	router := func(a netip.Addr) {
		if a.IsValid() && !slices.Contains(out.Routers, a) {
			out.Routers = append(out.Routers, a)
		}
	}
	for _, e := range t.servers {
		if router(e.router); !slices.Contains(out.Servers, e.value) {
			out.Servers = append(out.Servers, e.value)
		}
	}
	for _, e := range t.domains {
		if router(e.router); !slices.Contains(out.Search, e.value) {
			out.Search = append(out.Search, e.value)
		}
	}
	return out
}
