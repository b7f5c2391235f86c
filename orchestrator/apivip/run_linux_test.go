package apivip

import (
	"context"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/neighbor"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// plane is a fake control plane for the probes, with the last announcement of the component.
type plane struct {
	mu      sync.Mutex
	answers map[string]health.ProbeResult // by address and port; without an entry, no answer comes
	asked   map[string]int
	works   bool
	detail  string
	written []redirect // the redirects that the component has written
}

func (p *plane) ask(_ context.Context, address string) health.ProbeResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[address]++
	if a, ok := p.answers[address]; ok {
		return a
	}
	return health.ProbeResult{Late: true, Problem: "does not answer"}
}

func (p *plane) announce(_ string, works bool, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.works, p.detail = works, detail
}

func (p *plane) set(address string, a health.ProbeResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[address] = a
}

func (p *plane) await(t *testing.T, works bool, words string) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(neighbor.StepInterval)
	defer tick.Stop()
	for {
		p.mu.Lock()
		now, detail := p.works, p.detail
		p.mu.Unlock()
		if now == works && strings.Contains(detail, words) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("the component announces %t %q, want %t %q", now, detail, works, words)
		}
	}
}

// TestRun has a machine with a silent peer. The machine takes the address when its API server is
// ready and its link has a matching network. It releases the address when the link has no matching
// network, or when its API server is not ready and that of the peer is. The test only records the
// redirects, because the kernel may lack NAT.
func TestRun(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	rtnltest.Veth(t, "eth0", "far")
	rtnltest.AddAddresses(t, "far")
	rtnltest.AddAddresses(t, "eth0", "192.0.2.11/24")
	p := &plane{answers: map[string]health.ProbeResult{}, asked: map[string]int{}}
	a := newAgent(nodespec.Spec{
		Node:             nodespec.Node{Name: "a", ControlPlane: true, IPs: []netip.Addr{netip.MustParseAddr("192.0.2.11")}},
		ControlPlanes:    []netip.Addr{netip.MustParseAddr("192.0.2.12"), netip.MustParseAddr("192.0.2.11")},
		VirtualAddresses: []netip.Addr{vip4},
	})
	a.write = func(all []redirect) error { p.written = all; return nil }
	a.dropFlows = func(staleFlows) error { return nil }
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- neighbor.WithLinks(ctx, func(ctx context.Context, links <-chan struct{}) error { return a.run(ctx, p.ask, links, p.announce) })
	}()

	const own = "127.0.0.1:6443"
	p.await(t, false, "no machine holds 192.0.2.9; the API server of this machine: does not answer")
	p.set(own, health.ProbeResult{Reachable: true})
	p.await(t, true, "holds 192.0.2.9 since ")
	p.set(own, health.ProbeResult{Reachable: true, Problem: "500: shutdown failed"})
	// The machine still holds the address, because no other API server is ready.
	p.await(t, true, "; the API server of this machine: 500: shutdown failed")
	p.set("192.0.2.12:6443", health.ProbeResult{Reachable: true})
	p.await(t, false, "no machine holds 192.0.2.9; the API server of this machine: 500: shutdown failed")
	p.set(own, health.ProbeResult{Reachable: true})
	p.await(t, true, "holds 192.0.2.9 since ")
	near, err := netlink.LinkByName("eth0")
	must(t, err)
	addresses, err := netlink.AddrList(near, netlink.FAMILY_V4)
	must(t, err)
	for _, a := range addresses {
		must(t, netlink.AddrDel(near, &a))
	}
	p.await(t, false, "no link of this machine has a network for it")
	stop()
	must(t, <-ended)
	if p.asked["192.0.2.12:6443"] == 0 || p.asked[own] == 0 || len(p.asked) != 2 {
		t.Errorf("the probed servers are %v", p.asked)
	}
	a.close()
	if p.written != nil {
		t.Errorf("redirects exist after the end of the component: %v", p.written)
	}
}
