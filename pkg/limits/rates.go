package limits

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rates is a token bucket per key, for at most MaxKeys keys. If there is no room for a new key, it
// removes the full buckets. While no bucket is full, all new keys share a single bucket. So a
// caller with many keys cannot refill an empty bucket. But while this caller uses MaxKeys keys, it
// can take the tokens of the shared bucket from other callers.
type Rates struct {
	Interval time.Duration // time in which a bucket gains a token
	Burst    int           // tokens of a full bucket: the operations without a pause

	mu      sync.Mutex
	buckets map[string]*rate.Limiter
	shared  *rate.Limiter // bucket of the keys that have no bucket of their own
	swept   time.Time     // time of the last search for full buckets
}

// MaxKeys is the maximum number of keys with a bucket of their own.
const MaxKeys = 1000

// sweepInterval is the minimum time between two searches for full buckets. If Rates.Interval is
// shorter, it is the minimum time.
const sweepInterval = time.Second

// Allow reports whether an operation of a key may start now. If it may, Allow takes a token from
// the bucket of the key.
func (t *Rates) Allow(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bucketLocked(key, time.Now()).Allow()
}

// Exhausted reports whether the key has a bucket of its own, and this bucket has no token. It takes
// no token and creates no bucket.
func (t *Rates) Exhausted(key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.buckets[key]
	return l != nil && l.Tokens() < 1
}

// bucketLocked returns the bucket of a key. A new key gets a bucket of its own if there is room,
// and the shared bucket otherwise. The caller holds mu.
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

// sweepLocked removes the full buckets. A key loses nothing, because its next bucket is full again.
// The minimum time between two searches prevents that each key in a flood of new keys causes a
// search. The caller holds mu.
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

// Callers limits callers that have no identity. It counts the operations by the address of the
// caller and also by its network, which can be a rack of machines or a single IPv6 client with many
// addresses.
type Callers struct{ Address, Network Rates }

// Allow reports whether the limits admit an operation of a caller now. peer is ADDRESS:PORT. A
// caller over the limit of its address takes no token of its network. Addresses in a network over
// its limit get no bucket.
func (c *Callers) Allow(peer string) bool {
	address := AddressOf(peer).String()
	return !c.Address.Exhausted(address) && c.Network.Allow(NetworkOf(peer)) && c.Address.Allow(address)
}

// NetworkOf returns the network of a caller in the form of ADDRESS/64 for IPv6, because an IPv6
// client can use all addresses of a /64. For IPv4 it returns the address. peer is ADDRESS:PORT.
func NetworkOf(peer string) string {
	addr := AddressOf(peer)
	if addr.Is6() {
		network, _ := addr.Prefix(64)
		return network.String()
	}
	return addr.String()
}

// AddressOf returns the address of a caller without its zone. peer is ADDRESS:PORT. For an invalid
// peer it returns the zero Addr.
func AddressOf(peer string) netip.Addr {
	at, _ := netip.ParseAddrPort(peer)
	return at.Addr().Unmap().WithZone("")
}
