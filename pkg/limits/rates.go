package limits

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rates is a token bucket per key.
type Rates struct {
	Interval time.Duration // interval between two operations, in the long run
	Burst    int           // operations at once

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
}

// MaxKeys bounds the number of buckets; above it, all buckets are reset.
const MaxKeys = 1000

// Allow reports whether an operation of a key may start now.
func (t *Rates) Allow(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.buckets == nil || len(t.buckets) >= MaxKeys {
		t.buckets = map[string]*rate.Limiter{}
	}
	l := t.buckets[key]
	if l == nil {
		l = rate.NewLimiter(rate.Every(t.Interval), t.Burst)
		t.buckets[key] = l
	}
	return l.Allow()
}

// NetworkOf returns the network of a caller's address, as apid counts it: an IPv6 client has a
// whole /64.
func NetworkOf(peer string) string {
	addr := AddressOf(peer)
	if addr.Is6() {
		network, _ := addr.Prefix(64)
		return network.String()
	}
	return addr.String()
}

// AddressOf returns the address of a caller. All invalid addresses are equal.
func AddressOf(peer string) netip.Addr {
	at, _ := netip.ParseAddrPort(peer)
	return at.Addr().Unmap().WithZone("")
}
