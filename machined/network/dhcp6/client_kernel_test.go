//go:build linux

package dhcp6_test

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/orlop-os/orlop/machined/network/dhcp6"
	"github.com/orlop-os/orlop/machined/network/dhcp6/dhcp6test"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// bed is a client on a link of a veth pair, and a server on the other link. The link of the client
// has only its link-local address, because the code that uses a client has to add the leased
// addresses, and these tests do not.
type bed struct {
	*dhcp6test.Server
	client *dhcp6.Client
	status *cell.Cell[dhcp6.Status]
}

var (
	address = netip.MustParseAddr("2001:db8::5")
	hour    = dhcp6test.Plan{Addresses: []netip.Addr{address}, Preferred: time.Hour, Valid: 2 * time.Hour,
		Options: []dhcpv6.Option{dhcpv6.OptDNS(net.IP(netip.MustParseAddr("2001:db8::53").AsSlice()))}}
	stateful = dhcp6.Mode{Addresses: true}
)

// slowTimeout is the limit for events that normally occur immediately. A busy computer may need
// most of this time.
const slowTimeout = 30 * time.Second

func newBed(t *testing.T, plan dhcp6test.Plan, mode dhcp6.Mode, stored *dhcp6.Lease) *bed {
	t.Helper()
	b := &bed{status: cell.New(dhcp6.Status{})}
	other := rtnltest.NewOther(t)
	other.NoDetection(t)
	rtnltest.NoDetection(t)
	rtnltest.Veth(t, "c0", "s0")
	other.MoveLink(t, "s0")
	rtnltest.SetUp(t, "c0", true)
	other.SetUp(t, "s0", true)
	b.Server = dhcp6test.Start(t, other, "s0", plan)
	link, err := net.InterfaceByName("c0")
	if err != nil {
		t.Fatal(err)
	}
	b.client = dhcp6.New(dhcp6.Options{
		Link: link.Name, Index: link.Index, DUID: dhcp6.DUID(link.HardwareAddr), IAID: dhcp6.IAID("c0"), Mode: mode, StoredLease: stored,
		Random: rand.Uint32, Changed: b.status.Set,
	})
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
	b.client.SetReady(true)
	return b
}

// wait waits until ok returns true for the status, and returns the status. If this takes longer
// than limit, it fails the test; expected describes the expected status.
func (b *bed) wait(t *testing.T, limit time.Duration, expected string, ok func(dhcp6.Status) bool) dhcp6.Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	st, err := cell.Wait(ctx, b.status, ok)
	if err != nil {
		t.Fatalf("the client is not %q after %v: %+v; the server saw %q", expected, limit, st, b.Seen())
	}
	return st
}

func bound(s dhcp6.Status) bool { return s.Phase == dhcp6.Bound && s.Lease != nil }

// TestLeaseKernel checks the messages of a client that gets its first lease, and this lease.
func TestLeaseKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	b := newBed(t, hour, stateful, nil)
	st := b.wait(t, slowTimeout, "bound", bound)
	if !st.Lease.Has(address) || st.Lease.T1 != 30*time.Minute || !slices.Equal(st.Lease.DNS, []netip.Addr{netip.MustParseAddr("2001:db8::53")}) {
		t.Errorf("the lease is %+v", st.Lease)
	}
	if want, seen := []string{"SOLICIT", "REQUEST 2001:db8::5"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}

// TestRapidCommitKernel checks that a client gets an address and a prefix with a single message if
// the server supports rapid commit.
func TestRapidCommitKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := hour
	plan.Rapid, plan.Prefix = true, netip.MustParsePrefix("2001:db8:100::/56")
	b := newBed(t, plan, dhcp6.Mode{Addresses: true, Prefix: 60}, nil)
	st := b.wait(t, slowTimeout, "bound", bound)
	if len(st.Lease.Prefixes) != 1 || st.Lease.Prefixes[0].Prefix != plan.Prefix {
		t.Errorf("the lease is %+v", st.Lease)
	}
	if want, seen := []string{"SOLICIT ::/60"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}

// TestSettingsKernel checks that a client that needs no address and no prefix requests settings
// only.
func TestSettingsKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	b := newBed(t, hour, dhcp6.Mode{}, nil)
	st := b.wait(t, slowTimeout, "informed", func(s dhcp6.Status) bool { return s.Phase == dhcp6.Informed })
	if len(st.Lease.Addresses) != 0 || len(st.Lease.DNS) != 1 {
		t.Errorf("the lease is %+v", st.Lease)
	}
	if want, seen := []string{"INFORMATION-REQUEST"}, slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}

// TestRebindKernel checks the phases of a lease. The server first extends the lease at T1. Then it
// does not answer any more: the client renews after T1, rebinds after T2, and solicits after the
// end.
func TestRebindKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := hour
	// Each phase lasts for several seconds, so that a busy computer does not skip a phase.
	plan.Preferred, plan.Valid, plan.T1, plan.T2 = 10*time.Second, 10*time.Second, 2*time.Second, 6*time.Second
	b := newBed(t, plan, stateful, nil)
	b.wait(t, slowTimeout, "bound", bound)
	b.Wait(t, slowTimeout, func(seen []string) bool { return slices.Contains(seen, "RENEW 2001:db8::5") })
	b.wait(t, slowTimeout, "renewed", bound)
	plan.Silent = true
	b.Set(plan)
	b.wait(t, slowTimeout, "renewing", func(s dhcp6.Status) bool { return s.Phase == dhcp6.Renewing && s.Lease != nil })
	b.wait(t, slowTimeout, "rebinding", func(s dhcp6.Status) bool { return s.Phase == dhcp6.Rebinding && s.Lease != nil })
	b.wait(t, slowTimeout, "without a lease", func(s dhcp6.Status) bool { return s.Lease == nil && s.Phase == dhcp6.Soliciting })
}

// TestForgottenKernel checks a renewal at a server that has lost its leases: the client requests
// the address again, and its lease stays in use during this time.
func TestForgottenKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := hour
	plan.T1, plan.T2, plan.Forgot = time.Second, time.Hour, true
	b := newBed(t, plan, stateful, nil)
	first := b.wait(t, slowTimeout, "bound", bound)
	b.wait(t, slowTimeout, "bound again", func(s dhcp6.Status) bool {
		if s.Lease == nil {
			t.Error("the lease was dropped")
		}
		return bound(s) && s.Lease.Acquired != first.Lease.Acquired
	})
	if seen := slices.Compact(b.Seen()); !slices.Equal(seen[:min(4, len(seen))], []string{"SOLICIT", "REQUEST 2001:db8::5", "RENEW 2001:db8::5", "REQUEST 2001:db8::5"}) {
		t.Errorf("the server saw %q", seen)
	}
}

// TestConfirmKernel starts a client with a stored lease. On the link of the lease, the server
// confirms the lease. On another link, the server answers NotOnLink, and the client gets a new
// lease.
func TestConfirmKernel(t *testing.T) {
	stored := &dhcp6.Lease{Server: "00030001020000000063", Addresses: []dhcp6.Address{{Addr: address, Preferred: time.Hour, Valid: time.Hour}},
		Acquired: time.Now(), T1: time.Minute, T2: 2 * time.Minute}
	for name, test := range map[string]struct {
		moved bool
		want  []string
	}{
		"the same link": {false, []string{"CONFIRM 2001:db8::5"}},
		"another link":  {true, []string{"CONFIRM 2001:db8::5", "SOLICIT", "REQUEST 2001:db8::5"}},
	} {
		t.Run(name, func(t *testing.T) {
			if !rtnltest.Isolate(t) {
				return
			}
			plan := hour
			plan.NotOnLink = test.moved
			b := newBed(t, plan, stateful, stored)
			b.wait(t, slowTimeout, "bound", bound)
			if seen := slices.Compact(b.Seen()); !slices.Equal(seen, test.want) {
				t.Errorf("the server saw %q, want %q", seen, test.want)
			}
		})
	}
}

// TestDeclineKernel reports to the client that another machine has its address. The client declines
// the address, gets another one, and later releases it.
func TestDeclineKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	plan := hour
	second := netip.MustParseAddr("2001:db8::6")
	plan.Addresses = append(slices.Clone(plan.Addresses), second)
	b := newBed(t, plan, stateful, nil)
	b.wait(t, slowTimeout, "bound", bound)
	b.client.Duplicate(address)
	b.wait(t, slowTimeout, "bound to the second address", func(s dhcp6.Status) bool { return bound(s) && s.Lease.Has(second) })
	b.client.Release()
	b.wait(t, slowTimeout, "released", func(s dhcp6.Status) bool { return s.Phase == dhcp6.Released && s.Lease == nil })
	want := []string{"SOLICIT", "REQUEST 2001:db8::5", "DECLINE 2001:db8::5", "SOLICIT", "REQUEST 2001:db8::6", "RELEASE 2001:db8::6"}
	if seen := slices.Compact(b.Seen()); !slices.Equal(seen, want) {
		t.Errorf("the server saw %q, want %q", seen, want)
	}
}
