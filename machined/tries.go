package main

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// tries bounds how often somebody may try something: each of those who do has a limit of his own.
type tries struct {
	sync.Mutex
	each   time.Duration // between two, in the long run
	atOnce int
	by     map[string]*rate.Limiter
}

// triesTracked is of how many it is known; above that, all are forgotten.
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

// networkOf is whose a caller's address is, as apid counts: an IPv6 client owns a whole /64.
func networkOf(peer string) string {
	addr := addressOf(peer)
	if addr.Is6() {
		network, _ := addr.Prefix(64)
		return network.String()
	}
	return addr.String()
}

// addressOf is a caller's address itself. What is no address counts as one.
func addressOf(peer string) netip.Addr {
	at, _ := netip.ParseAddrPort(peer)
	return at.Addr().Unmap().WithZone("")
}
