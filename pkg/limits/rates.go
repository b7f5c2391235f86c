package limits

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rates is a token bucket per key. It remembers a bounded number of keys. A key that has used none
// of its tokens lately loses its bucket to a new key; if there is none, all new keys share a
// bucket. So a caller cannot refill its bucket by the use of other keys, however many it has. But
// as long as a caller uses MaxKeys keys, it can take the tokens of the shared bucket from the
// others.
type Rates struct {
	Interval time.Duration // interval between two operations, in the long run
	Burst    int           // operations at once

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	shared  *rate.Limiter // of the keys without a bucket
	swept   time.Time     // last search for full buckets
}

// MaxKeys bounds the number of buckets.
const MaxKeys = 1000

// sweepInterval is the longest interval between two searches for full buckets while new keys come.
const sweepInterval = time.Second

// Allow reports whether an operation of a key may start now.
func (t *Rates) Allow(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bucketLocked(key, time.Now()).Allow()
}

// Exhausted reports whether Allow would reject an operation of a key by the key's own bucket. It
// takes no token and remembers no key.
func (t *Rates) Exhausted(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.buckets[key]
	return l != nil && l.Tokens() < 1
}

// bucketLocked returns the bucket of a key. A new key gets a bucket if there is room for it.
func (t *Rates) bucketLocked(key string, now time.Time) *rate.Limiter {
	if l := t.buckets[key]; l != nil {
		return l
	}
	if t.buckets == nil {
		t.buckets, t.shared = map[string]*rate.Limiter{}, t.newBucket()
	}
	if len(t.buckets) >= MaxKeys {
		t.sweepLocked(now)
	}
	if len(t.buckets) >= MaxKeys {
		return t.shared
	}
	l := t.newBucket()
	t.buckets[key] = l
	return l
}

func (t *Rates) newBucket() *rate.Limiter { return rate.NewLimiter(rate.Every(t.Interval), t.Burst) }

// sweepLocked removes the full buckets: a new bucket for the same key would be equal. It looks for
// them rarely, because a flood of new keys must not cost a search each.
func (t *Rates) sweepLocked(now time.Time) {
	if now.Sub(t.swept) < min(t.Interval, sweepInterval) {
		return
	}
	t.swept = now
	for key, l := range t.buckets {
		if l.TokensAt(now) >= float64(t.Burst) {
			delete(t.buckets, key)
		}
	}
}

// Callers bounds the operations of callers without an identity, by the address and by the network
// of each caller: a rack of machines shares a network.
type Callers struct{ Address, Network Rates }

// Allow reports whether the limits of a caller, ADDRESS:PORT, admit an operation now. A caller over
// the limit of its address takes no place from its network, and a network over its limit adds no
// addresses.
func (c *Callers) Allow(peer string) bool {
	address := AddressOf(peer).String()
	return !c.Address.Exhausted(address) && c.Network.Allow(NetworkOf(peer)) && c.Address.Allow(address)
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
