package main

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rateLimits is one token bucket per key.
type tries struct {
	sync.Mutex
	each   time.Duration // interval between two, in the long run
	atOnce int
	by     map[string]*rate.Limiter
}

// maxRateLimits bounds the number of buckets; above it, all buckets are reset.
const triesTracked = 1000

func (t *tries) allowed(who string) bool {
	t.Lock()
	defer t.Unlock()
	if t.by == nil || len(t.by) >= triesTracked {
		t.by = map[string]*rate.Limiter{}
	}
	l := t.by[who]
	if l == nil {
		l = rate.NewLimiter(rate.Every(t.each), t.atOnce)
		t.by[who] = l
	}
	return l.Allow()
}

// networkOf returns the network of a caller's address, as apid counts it: an IPv6 client has a
// whole /64.
func networkOf(peer string) string {
	addr := addressOf(peer)
	if addr.Is6() {
		network, _ := addr.Prefix(64)
		return network.String()
	}
	return addr.String()
}

// addressOf returns the address of a caller. All invalid addresses are equal.
func addressOf(peer string) netip.Addr {
	at, _ := netip.ParseAddrPort(peer)
	return at.Addr().Unmap().WithZone("")
}
