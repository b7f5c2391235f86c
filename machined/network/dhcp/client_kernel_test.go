//go:build linux

package dhcp_test

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/orlop-os/orlop/machined/network/dhcp"
	"github.com/orlop-os/orlop/machined/network/dhcp/dhcptest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// bed is a client on a link of a veth pair, and a server on the other link. The link of the client
// never gets an IPv4 address, because the code that uses a client has to add it, and these tests do
// not.
type bed struct {
	*dhcptest.Server
	other  *rtnltest.Namespace
	client *dhcp.Client
	status *cell.Cell[dhcp.Status]

	mu     sync.Mutex
	phases []phase // all phases of the client, in order
}

// phase is a phase of the client, with or without a lease.
type phase struct {
	dhcp.Phase
	leased bool
}

var (
	serverAddress = netip.MustParsePrefix("192.0.2.1/24")
	clientAddress = netip.MustParseAddr("192.0.2.55")
)

func newBed(t *testing.T, plan dhcptest.Plan, remembered *dhcp.Lease) *bed {
	t.Helper()
	b := &bed{other: rtnltest.NewOther(t), status: cell.New(dhcp.Status{})}
	rtnltest.Veth(t, "c0", "s0")
	b.other.MoveLink(t, "s0")
	rtnltest.SetUp(t, "c0", true)
	b.Server = dhcptest.Start(t, b.other, "s0", serverAddress, plan)
	link, err := net.InterfaceByName("c0")
	if err != nil {
		t.Fatal(err)
	}
	b.client = dhcp.New(dhcp.Options{
		Link: link.Name, Index: link.Index, MAC: link.HardwareAddr, StoredLease: remembered,
		Random: rand.Uint32, Changed: func(s dhcp.Status) {
			b.mu.Lock()
			b.phases = append(b.phases, phase{s.Phase, s.Lease != nil})
			b.mu.Unlock()
			b.status.Set(s)
		},
	})
	b.client.SetHostname("ship")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.client.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	b.client.SetCarrier(true)
	return b
}

// patience is the limit of each wait. A busy computer may need most of this time.
const patience = 30 * time.Second

// wait waits until ok returns true for the status, and returns the status. After the time patience,
// it fails the test; expected describes the expected status.
func (b *bed) wait(t *testing.T, expected string, ok func(dhcp.Status) bool) dhcp.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	st, err := cell.Wait(ctx, b.status, ok)
	if err != nil {
		t.Fatalf("the client is not %q after %v: %+v; the server saw %q", expected, patience, st, b.Seen())
	}
	return st
}

func bound(s dhcp.Status) bool { return s.Phase == dhcp.Bound && s.Lease != nil }

// TestLeaseKernel checks the messages of a client that gets its first lease, and this lease.
func TestLeaseKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	start := time.Now()
	b := newBed(t, dhcptest.Plan{Offer: clientAddress, Lease: time.Hour, Options: []dhcpv4.Option{
		dhcpv4.OptRouter(net.IPv4(192, 0, 2, 1)), dhcpv4.OptDNS(net.IPv4(192, 0, 2, 53)),
	}}, nil)
	st := b.wait(t, "bound", bound)
	if st.Lease.Address != netip.MustParsePrefix("192.0.2.55/24") || st.Lease.DNS[0] != netip.MustParseAddr("192.0.2.53") {
		t.Errorf("the lease is %+v", st.Lease)
	}
	if want, seen := []string{"DISCOVER ship", "REQUEST selecting ship"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
	t.Logf("bound after %v, including the creation of the network", time.Since(start))
}

// TestRapidCommitKernel checks that a client gets a lease with a single message if the server
// supports Rapid Commit.
func TestRapidCommitKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	b := newBed(t, dhcptest.Plan{Offer: clientAddress, Lease: time.Hour, Rapid: true}, nil)
	b.wait(t, "bound", bound)
	if want, seen := []string{"DISCOVER ship"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}

// TestRebindKernel checks the phases of a lease that the server does not extend: Renewing after T1,
// Rebinding after T2, and then the search for a new lease. The client cannot send the unicast
// REQUEST of the phase Renewing, because its link has no address. It must nevertheless enter the
// next phase.
func TestRebindKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	// Each phase lasts for several seconds, so that a busy computer does not skip a phase.
	plan := dhcptest.Plan{Offer: clientAddress, Lease: 10 * time.Second, Options: []dhcpv4.Option{
		dhcptest.Seconds(dhcpv4.OptionRenewTimeValue, 2*time.Second),
		dhcptest.Seconds(dhcpv4.OptionRebindingTimeValue, 6*time.Second),
	}}
	b := newBed(t, plan, nil)
	b.wait(t, "bound", bound)
	plan.IgnoreAll = true
	b.Set(plan)
	b.wait(t, "without a lease", func(s dhcp.Status) bool { return s.Lease == nil && s.Phase != dhcp.Init })
	b.mu.Lock()
	defer b.mu.Unlock()
	renewing, rebinding := slices.Index(b.phases, phase{dhcp.Renewing, true}), slices.Index(b.phases, phase{dhcp.Rebinding, true})
	if renewing < 0 || rebinding < renewing {
		t.Errorf("the client had the phases %v", b.phases)
	}
}

// TestRememberedKernel checks that a client with a stored lease first requests the address of this
// lease.
func TestRememberedKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	old := &dhcp.Lease{
		Address: netip.PrefixFrom(clientAddress, 24), Server: serverAddress.Addr(),
		Acquired: time.Now(), Duration: time.Hour, T1: time.Minute, T2: 2 * time.Minute,
	}
	b := newBed(t, dhcptest.Plan{Offer: clientAddress, Lease: time.Hour}, old)
	b.wait(t, "bound", bound)
	if want, seen := []string{"REQUEST rebooting ship"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}

// TestNakKernel checks a server that rejects each REQUEST (NAK). After the rejection of its stored
// lease, the client immediately searches for a new lease. It gets one when the server accepts
// requests again.
func TestNakKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	old := &dhcp.Lease{Address: netip.MustParsePrefix("198.51.100.9/24"), Acquired: time.Now(), Duration: time.Hour}
	plan := dhcptest.Plan{Offer: clientAddress, Lease: time.Hour, Refuse: true}
	b := newBed(t, plan, old)
	b.wait(t, "refused twice", func(s dhcp.Status) bool { return s.Phase == dhcp.Init && s.Problem != "" })
	if want, seen := []string{"REQUEST rebooting ship", "DISCOVER ship", "REQUEST selecting ship"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
	plan.Refuse = false
	b.Set(plan)
	b.wait(t, "bound", bound)
}

// TestSilenceKernel checks a server that does not answer: the client repeats its messages, and gets
// a lease as soon as the server answers.
func TestSilenceKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	b := newBed(t, dhcptest.Plan{}, nil)
	b.Wait(t, patience, func(seen []string) bool { return len(seen) >= 3 })
	b.Set(dhcptest.Plan{Offer: clientAddress, Lease: time.Hour})
	b.wait(t, "bound", bound)
}
