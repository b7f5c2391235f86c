package main

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rateLimits is one token bucket per key.
type rateLimits struct {
	sync.Mutex
	interval time.Duration // interval between two, in the long run
	burst    int
	buckets  map[string]*rate.Limiter
}

// maxRateLimits bounds the number of buckets; above it, all buckets are reset.
const maxRateLimits = 1000

func (t *rateLimits) allow(key string) bool {
	t.Lock()
	defer t.Unlock()
	if t.buckets == nil || len(t.buckets) >= maxRateLimits {
		t.buckets = map[string]*rate.Limiter{}
	}
	l := t.buckets[key]
	if l == nil {
		l = rate.NewLimiter(rate.Every(t.interval), t.burst)
		t.buckets[key] = l
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
