package bgp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestClosed has a client, a router and a machine. The router has a route to the machine, and the
// machine has its default route to the router. So a packet to an announced address at an unused
// port goes in circles between the two, until the machine has the rule. The rule drops no packets
// to other addresses.
func TestClosed(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	machine := rtnltest.NewOther(t)
	rtnltest.Veth(t, "router", "machine")
	machine.MoveLink(t, "machine")
	forward := func() { must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)) }
	forward()
	rtnltest.AddAddresses(t, "router", "192.0.2.1/24")
	machine.Do(func() {
		forward()
		rtnltest.AddAddresses(t, "machine", "192.0.2.11/24")
		must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("192.0.2.1")}))
	})
	client := rtnltest.NewOther(t)
	rtnltest.Veth(t, "near", "client")
	client.MoveLink(t, "client")
	rtnltest.AddAddresses(t, "near", "198.51.100.1/24")
	client.Do(func() {
		rtnltest.AddAddresses(t, "client", "198.51.100.2/24")
		must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("198.51.100.1")}))
	})
	for _, link := range []string{"all", "router", "near"} { // a router need not filter by source
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("0"), 0))
	}
	announced := netip.MustParsePrefix("203.0.113.70/32")
	_, pool, err := net.ParseCIDR("203.0.113.64/27")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{Dst: pool, Gw: net.ParseIP("192.0.2.11")}))
	transmitted := func() uint64 {
		link, err := netlink.LinkByName("router")
		must(t, err)
		return link.Attrs().Statistics.TxPackets
	}
	// A packet that goes in circles passes the router 32 times, which is half of its hop limit. Any
	// other packet passes the router once, so 20 packets stay below the threshold of 100.
	circles := func(to string) bool {
		t.Helper()
		before := transmitted()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 20 {
			client.Do(func() {
				conn, err := net.Dial("udp", to)
				must(t, err)
				defer conn.Close()
				_, err = conn.Write([]byte("x"))
				must(t, err)
			})
			<-tick.C
			if transmitted()-before > 100 {
				return true
			}
		}
		return false
	}
	if !circles("203.0.113.70:9") {
		t.Fatal("the packet does not go in circles without the rule")
	}
	machine.Do(func() { err = closeAddresses([]netip.Prefix{announced, netip.MustParsePrefix("2001:db8::70/128")}) })
	mustHaveNftables(t, err)
	if circles("203.0.113.70:9") {
		t.Error("the packet goes in circles in spite of the rule")
	}
	if !circles("203.0.113.71:9") {
		t.Error("the rule drops packets to an address that is not announced")
	}
	machine.Do(func() { must(t, closeAddresses(nil)) })
	if !circles("203.0.113.70:9") {
		t.Error("the rule still exists without addresses")
	}
}

// TestManyAddresses checks that the rules can have more addresses than fit into one netlink
// message, or into the default buffer of a socket.
func TestManyAddresses(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	const many = 10000
	var all []netip.Prefix
	for _, a := range []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")} {
		for range many {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
			a = a.Next()
		}
	}
	mustHaveNftables(t, closeAddresses(all))
	conn, err := nftables.New()
	must(t, err)
	for _, name := range []string{"four", "six"} {
		set, err := conn.GetSetByName(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}, name)
		must(t, err)
		elements, err := conn.GetSetElements(set)
		must(t, err)
		if len(elements) != many {
			t.Errorf("set %s has %d elements, want %d", name, len(elements), many)
		}
	}
}

// mustHaveNftables skips the test after the error of a kernel without nftables. Any other error
// fails the test.
func mustHaveNftables(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skipf("the kernel of this machine has no nftables (%v); the product's has, and `make kernel` runs the test there", err)
	}
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
