package main

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// tries bounds how often an address may try something. An IPv6 client owns a whole /64, so that is what counts, as at apid.
type tries struct {
	sync.Mutex
	each   time.Duration // between two, in the long run
	atOnce int
	by     map[netip.Prefix]*rate.Limiter
}

// triesTracked is of how many addresses it is known; above that, all are forgotten.
const triesTracked = 1000

func (t *tries) allowed(peer string) bool {
	at, _ := netip.ParseAddrPort(peer) // what is none counts as one
	host, _ := at.Addr().Unmap().WithZone("").Prefix(32)
	if host.Addr().Is6() {
		host, _ = at.Addr().WithZone("").Prefix(64)
	}
	t.Lock()
	defer t.Unlock()
	if t.by == nil || len(t.by) >= triesTracked {
		t.by = map[netip.Prefix]*rate.Limiter{}
	}
	l := t.by[host]
	if l == nil {
		l = rate.NewLimiter(rate.Every(t.each), t.atOnce)
		t.by[host] = l
	}
	return l.Allow()
}
