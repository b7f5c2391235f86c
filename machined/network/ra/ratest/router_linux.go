// Package ratest is an IPv6 router for tests, at the other end of a veth pair. It sends router
// advertisements (RFC 4861 section 4.2) according to a Plan. It does not forward packets.
package ratest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/rfc1035label"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// Plan describes the router advertisements of a router.
type Plan struct {
	// the link-local address of the router; if Source is invalid, the kernel chooses an address
	Source   netip.Addr
	Managed  bool
	Other    bool
	Lifetime time.Duration // lifetime of the default route, in whole seconds
	// on-link prefix for autoconfigured addresses, with endless lifetimes; if Prefix is invalid,
	// the router advertises no prefix
	Prefix  netip.Prefix
	Servers []netip.Addr // RDNSS
	Domains []string     // DNSSL
	// OptionLifetime is the lifetime of Servers and Domains, in whole seconds.
	OptionLifetime time.Duration
}

// Router is a running server that acts as several routers.
type Router struct {
	conn *ipv6.PacketConn
	link int

	mu    sync.Mutex
	plans []Plan // plans of the routers
	asked int
}

// Start runs routers on a link of the namespace until the test ends. Each of the routers answers
// each solicitation.
func Start(t *testing.T, o *rtnltest.Namespace, link string, plans ...Plan) *Router {
	t.Helper()
	r := &Router{plans: plans}
	var conn *icmp.PacketConn
	var ifi *net.Interface
	var err error
	o.Do(func() {
		if ifi, err = net.InterfaceByName(link); err == nil {
			conn, err = icmp.ListenPacket("ip6:ipv6-icmp", "::")
		}
	})
	if err != nil {
		t.Fatalf("router: cannot start: %v", err)
	}
	r.conn, r.link = conn.IPv6PacketConn(), ifi.Index
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterSolicitation)
	// Hosts drop a router advertisement with a lower hop limit, because another router may have
	// forwarded it.
	err = r.conn.SetMulticastHopLimit(255)
	if err == nil {
		err = r.conn.SetICMPFilter(&filter)
	}
	if err == nil {
		err = r.conn.JoinGroup(&net.Interface{Index: ifi.Index}, &net.IPAddr{IP: net.IPv6linklocalallrouters})
	}
	if err != nil {
		t.Fatalf("router: cannot set up its socket: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return r
}

// serve answers solicitations until the socket is closed.
func (r *Router) serve() {
	buf := make([]byte, 1500)
	for {
		if _, _, _, err := r.conn.ReadFrom(buf); err != nil {
			return
		}
		r.mu.Lock()
		r.asked++
		r.mu.Unlock()
		_ = r.send() // the error is ignored: the host repeats its solicitation
	}
}

// Asked returns the number of received solicitations.
func (r *Router) Asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// Advertise replaces the plans, and sends a router advertisement for each plan immediately, not
// only after a solicitation.
func (r *Router) Advertise(t *testing.T, plans ...Plan) {
	t.Helper()
	r.Set(plans...)
	if err := r.send(); err != nil {
		t.Fatalf("router: cannot advertise: %v", err)
	}
}

// Set replaces the plans.
func (r *Router) Set(plans ...Plan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plans = plans
}

// send sends a router advertisement for each plan.
func (r *Router) send() error {
	r.mu.Lock()
	plans := slices.Clone(r.plans)
	r.mu.Unlock()
	for _, p := range plans {
		cm := &ipv6.ControlMessage{IfIndex: r.link, HopLimit: 255}
		if p.Source.IsValid() {
			cm.Src = p.Source.AsSlice()
		}
		if _, err := r.conn.WriteTo(Encode(p), cm, &net.IPAddr{IP: net.IPv6linklocalallnodes}); err != nil {
			return err
		}
	}
	return nil
}

// Encode encodes a router advertisement. The checksum is 0, because the kernel computes it.
func Encode(p Plan) []byte {
	flags := byte(0)
	if p.Managed {
		flags |= 0x80
	}
	if p.Other {
		flags |= 0x40
	}
	b := []byte{134, 0, 0, 0, 64, flags}
	b = binary.BigEndian.AppendUint16(b, uint16(p.Lifetime/time.Second))
	b = append(b, make([]byte, 8)...)
	if p.Prefix.IsValid() {
		b = append(b, 3, 4, byte(p.Prefix.Bits()), 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
		b = append(b, p.Prefix.Addr().AsSlice()...)
	}
	lifetime := uint32(p.OptionLifetime / time.Second)
	if len(p.Servers) > 0 {
		b = binary.BigEndian.AppendUint32(append(b, 25, byte(1+2*len(p.Servers)), 0, 0), lifetime)
		for _, a := range p.Servers {
			b = append(b, a.AsSlice()...)
		}
	}
	if len(p.Domains) > 0 {
		names := (&rfc1035label.Labels{Labels: p.Domains}).ToBytes()
		for len(names)%8 != 0 {
			names = append(names, 0)
		}
		b = binary.BigEndian.AppendUint32(append(b, 31, byte(1+len(names)/8), 0, 0), lifetime)
		b = append(b, names...)
	}
	return b
}
