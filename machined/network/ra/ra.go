// Package ra tracks the resolvers and search domains of router advertisements (RFC 8106). The
// kernel receives and checks router advertisements, and configures addresses and routes from them.
// It passes the other options to user space (RTM_NEWNDUSEROPT). The package parses these options
// and tracks their lifetimes. It is pure: it has no clock and no socket.
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

// Limits of a table, because any host on the link can advertise values. In a full table, a new
// value replaces the value with the shortest remaining lifetime (RFC 8106 section 6.3).
const (
	maxServers = 16
	maxDomains = domains.Max
)

// forever is the number of seconds that means a lifetime without an end.
const forever = 0xffffffff

// Option is a parsed option.
type Option struct {
	Servers  []netip.Addr // resolvers of an RDNSS option
	Domains  []string     // search domains of a DNSSL option
	Lifetime time.Duration
	Forever  bool // the lifetime has no end
}

// Parse parses an option, including its header. An option of an unknown type becomes an empty
// Option. The error describes the first unusable part of the option; the returned Option has the
// usable parts.
func Parse(b []byte) (o Option, err error) {
	if len(b) < 8 || len(b) != int(b[1])*8 {
		return Option{}, errors.New("router advertisement: an option has a wrong length")
	}
	seconds := binary.BigEndian.Uint32(b[4:8])
	o.Forever, o.Lifetime = seconds == forever, time.Duration(seconds)*time.Second
	switch b[0] {
	case typeServers:
		if len(b)%16 != 8 {
			return Option{}, errors.New("router advertisement: resolvers (RDNSS): the length does not match a list of addresses")
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

// usable reports whether a resolver with this address can serve the machine and its pods. It
// returns false for a link-local address, which needs a zone: pods do not have the zone.
func usable(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.IsGlobalUnicast()
}

// entry is a value that a router advertises, with the end of its lifetime.
type entry[T comparable] struct {
	value   T
	router  netip.Addr
	expires time.Time // zero if the value never expires
}

// Table has the current values of a link, in the order of their arrival. The zero Table is empty.
// If several routers advertise the same value, the value remains until the last of these routers
// withdraws it.
type Table struct {
	servers []entry[netip.Addr]
	domains []entry[string]
}

// Add returns the table with an option of a router added. An option with a lifetime of 0 withdraws
// its values.
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

// set returns the list after an entry is added, refreshed or removed. In a list of limit entries, e
// replaces the entry that ends first. If e itself ends first, the list does not change.
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

// earlier compares the ends of two entries. It returns a negative number if a ends before b.
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

// Expire returns the table without the entries that have expired. The result shares no memory with
// t.
func (t Table) Expire(now time.Time) Table {
	return Table{servers: alive(t.servers, now), domains: alive(t.domains, now)}
}

// alive returns the entries that have not expired.
func alive[T comparable](list []entry[T], now time.Time) (out []entry[T]) {
	for _, e := range list {
		if e.expires.IsZero() || now.Before(e.expires) {
			out = append(out, e)
		}
	}
	return out
}

// Next returns the time at which the next entry expires; the zero time if no entry expires.
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

// Info has the values of a link that are in use.
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
