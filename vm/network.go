package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
)

// GatewayName is the name of the gateway on the switch and in DNS.
const GatewayName = "gateway"

// NetworkSpec describes a closed network. The zero value is valid.
type NetworkSpec struct {
	// Subnet is an IPv4 network of /16 to /28; default 10.77.0.0/24. The gateway has the first
	// address, machines get the eleventh and the following addresses.
	Subnet netip.Prefix `json:"subnet,omitzero"`
	// Domain is the DNS domain of the machines, default "orlop.test".
	Domain string `json:"domain,omitempty"`
	// Capture is the file for all frames; empty: no capture.
	Capture string `json:"capture,omitempty"`
	// Lease is the duration of DHCP leases, default 1 h.
	Lease time.Duration `json:"lease,omitempty"`
	IPv6  IPv6Spec      `json:"ipv6,omitzero"`
	// NoDHCP switches the DHCP server off until Network.SetDHCP switches it on.
	NoDHCP bool `json:"noDHCP,omitempty"`
	// NoRouter removes the router from the leases and the router advertisements: machines get no
	// default route.
	NoRouter bool `json:"noRouter,omitempty"`
	// ClockOffset is added to the time of the NTP server.
	ClockOffset time.Duration `json:"clockOffset,omitempty"`
	// Dilation is the factor by which time passes more slowly on the network than on this computer
	// (Clock); 0 means 1.
	Dilation int `json:"dilation,omitempty"`
	// Names are additional DNS names (without a trailing dot) and their addresses.
	Names map[string][]netip.Addr `json:"names,omitempty"`
}

// Network is a closed Ethernet network with a gateway that serves DHCP, DNS and NTP and does not
// forward.
type Network struct {
	spec    NetworkSpec
	clock   Clock
	sw      *ethSwitch
	capture *capture
	gateway *Host
	closers []func()
	control control

	mu       sync.Mutex
	leases   map[macAddr]*lease
	names    map[string][]netip.Addr
	ports    map[string]*port
	forwards []*Forward
	bootFile string // the boot image for machines (ServeBoot)
	closed   bool
}

// control contains the settings that a test changes while the services of the network run.
type control struct {
	noDHCP atomic.Bool
	noNTP  atomic.Bool
	// lldpName is the name of the switch in LLDP; nil or empty: no announcements.
	lldpName atomic.Pointer[string]
	bgp      atomic.Pointer[BGPRouter] // nil: no BGP
}

// lease holds the name, the IPv4 address and the DHCP mode of a machine or host.
type lease struct {
	name string
	addr netip.Addr
	dhcp DHCPMode
}

// NewNetwork starts a closed network. Close ends it.
func NewNetwork(spec NetworkSpec) (*Network, error) {
	if !spec.Subnet.IsValid() {
		spec.Subnet = netip.MustParsePrefix("10.77.0.0/24")
	}
	spec.Subnet = spec.Subnet.Masked()
	if bits := spec.Subnet.Bits(); !spec.Subnet.Addr().Is4() || bits < 16 || bits > 28 {
		return nil, fmt.Errorf("network: subnet %s is not an IPv4 network of /16 to /28", spec.Subnet)
	}
	if spec.Domain == "" {
		spec.Domain = "orlop.test"
	}
	if spec.Lease == 0 {
		spec.Lease = time.Hour
	}
	var err error
	if spec.IPv6, err = spec.IPv6.withDefaults(); err != nil {
		return nil, err
	}
	clock := Clock{Began: time.Now(), Dilation: spec.Dilation}
	if err := clock.check(); err != nil {
		return nil, err
	}
	n := &Network{spec: spec, clock: clock, leases: map[macAddr]*lease{}, names: map[string][]netip.Addr{}, ports: map[string]*port{}}
	for name, addrs := range spec.Names {
		n.names[strings.ToLower(strings.TrimSuffix(name, "."))] = addrs
	}
	if n.capture, err = newCapture(spec.Capture); err != nil {
		return nil, err
	}
	n.sw = newSwitch(n.capture)
	n.sw.timeout = clock.Outside(lacpTimeout)
	if err := n.startGateway(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// startGateway starts the gateway, and its services in order. Close stops the services.
func (n *Network) startGateway() error {
	addr := netip.PrefixFrom(n.spec.Subnet.Addr().Next(), n.spec.Subnet.Bits())
	var err error
	// The gateway has no default route, so even its own packets stay in the network.
	if n.gateway, err = newHost(n.sw, n.clock, GatewayName, n.macOf(addr.Addr()), addr, netip.Addr{}, n.spec.IPv6); err != nil {
		return err
	}
	n.gateway.names = n.Lookup
	n.addName(GatewayName, n.spec.IPv6.names(addr.Addr(), n.spec.IPv6.gateway())...)
	starts := []func() (func(), error){n.startDHCP, n.startDNS, n.startNTP, func() (func(), error) { return startLLDP(n) }}
	if n.spec.IPv6.on() {
		starts = append(starts, router{n}.startDHCP6, router{n}.start)
	}
	for _, start := range starts {
		stop, err := start()
		if err != nil {
			return err
		}
		n.closers = append(n.closers, stop)
	}
	return nil
}

// macOf returns the hardware address for an IPv4 address: 52:54:4f and the last three bytes of the
// IPv4 address.
func (n *Network) macOf(addr netip.Addr) macAddr {
	a := addr.As4()
	return macAddr{0x52, 0x54, 0x4f, a[1], a[2], a[3]}
}

// repeat calls the function do at once, after each interval, and after each signal of wake; wake
// may be nil. The returned function ends the calls.
func repeat(interval time.Duration, wake cell.Signal, do func()) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			do()
			select {
			case <-wake:
			case <-tick.C:
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// Subnet returns the IPv4 range of the network.
func (n *Network) Subnet() netip.Prefix { return n.spec.Subnet }

// Clock returns the clock of the network.
func (n *Network) Clock() Clock { return n.clock }

// Gateway returns the address of the gateway, which is the router, DNS server and NTP server. It is
// an IPv6 address in a network with IPv6 only, and otherwise an IPv4 address.
func (n *Network) Gateway() netip.Addr {
	if n.spec.IPv6.Only {
		return n.gateway.six
	}
	return n.gateway.addr
}

// Domain returns the DNS domain of the machines.
func (n *Network) Domain() string { return n.spec.Domain }

// CaptureFile flushes the capture and returns its path. The path is empty if there is no capture.
func (n *Network) CaptureFile() (string, error) {
	return n.spec.Capture, n.capture.flush()
}

// DialContext connects from the gateway to an address on the network, for example
// "10.77.0.11:50000" or "cp1:50000". network is "tcp" or "udp". If machines announce the address by
// BGP (StartBGP), the connection uses their routes.
func (n *Network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	r := n.control.bgp.Load()
	if to, ok := r.routed(address); ok {
		return r.dial(ctx, network, address, to)
	}
	return n.gateway.DialContext(ctx, network, address)
}

// Listen opens a TCP port on the gateway (0: a free port), on which the caller can serve machines.
func (n *Network) Listen(port uint16) (net.Listener, error) { return n.gateway.Listen(port) }

// ListenPacket opens a UDP port on the gateway (0: a free port).
func (n *Network) ListenPacket(port uint16) (net.PacketConn, error) {
	return n.gateway.ListenPacket(port)
}

// NewHost adds a Host to the network. An invalid addr selects the next free address.
func (n *Network) NewHost(name string, addr netip.Addr) (*Host, error) {
	addr, mac, err := n.reserve(name, addr)
	if err != nil {
		return nil, err
	}
	h, err := newHost(n.sw, n.clock, name, mac, netip.PrefixFrom(addr, n.spec.Subnet.Bits()), n.gateway.addr, n.spec.IPv6)
	if err != nil {
		return nil, err
	}
	h.names = n.Lookup
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports[name] = h.port
	return h, nil
}

// reserve assigns an IPv4 address and a hardware address to a name, and registers them for DHCP and
// DNS. An invalid addr selects the next free address. A name that is already registered keeps its
// addresses.
func (n *Network) reserve(name string, addr netip.Addr) (netip.Addr, macAddr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := map[netip.Addr]string{n.gateway.addr: GatewayName}
	for mac, l := range n.leases {
		if l.name == name && (!addr.IsValid() || l.addr == addr) {
			return l.addr, mac, nil
		}
		taken[l.addr] = l.name
	}
	if !addr.IsValid() {
		addr = n.spec.Subnet.Addr()
		for range 11 {
			addr = addr.Next()
		}
		for taken[addr] != "" {
			addr = addr.Next()
		}
	}
	if !n.spec.Subnet.Contains(addr) || addr == n.spec.Subnet.Addr() || !n.spec.Subnet.Contains(addr.Next()) {
		return addr, macAddr{}, fmt.Errorf("network: cannot give %s the address %s: it is no host address of %s", name, addr, n.spec.Subnet)
	}
	if by := taken[addr]; by != "" {
		return addr, macAddr{}, fmt.Errorf("network: cannot give %s the address %s: %s has it", name, addr, by)
	}
	mac := n.macOf(addr)
	n.leases[mac] = &lease{name: name, addr: addr}
	n.addNameLocked(name, n.spec.IPv6.names(addr, n.spec.IPv6.addrOf(mac))...)
	return addr, mac, nil
}

// plug makes a cable, a socket pair. It attaches the first end to a new port of the switch with
// this name, and returns the second end, which QEMU inherits.
func (n *Network) plug(name string) (*os.File, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("network: cannot make a socket pair for %s: %w", name, err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name)
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("network: cannot use the socket pair for %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		theirs.Close()
		conn.Close()
		return nil, fmt.Errorf("network: cannot plug %s in: the network is closed", name)
	}
	p := n.sw.attachConn(name, conn)
	if old := n.ports[name]; old != nil {
		old.faultMu.Lock()
		faults := old.faults
		old.faultMu.Unlock()
		p.setFaults(faults) // the cable keeps its faults after a power cut of the machine
		old.shut()
	}
	n.ports[name] = p
	return theirs, nil
}

// SetFaults sets the faults on the cable of a machine, an additional NIC (NICName), a host or the
// gateway. The faults persist over power cuts. SetFaults fails if the name has no cable.
func (n *Network) SetFaults(name string, f Faults) error {
	n.mu.Lock()
	p := n.ports[name]
	n.mu.Unlock()
	if name == GatewayName {
		p = n.gateway.port
	}
	if p == nil {
		return fmt.Errorf("network: cannot set faults: nothing is plugged in as %q", name)
	}
	p.setFaults(f)
	return nil
}

// SetVLANs sets the VLANs of a port of the switch. name is the name of a machine, an additional NIC
// (NICName), a host or the gateway. The VLANs persist over power cuts.
func (n *Network) SetVLANs(name string, v PortVLANs) error {
	if err := v.check(); err != nil {
		return fmt.Errorf("network: cannot set the VLANs of %s: %w", name, err)
	}
	n.sw.setVLANs(name, v)
	return nil
}

// Bundle aggregates ports of the switch to one link by LACP (IEEE 802.1AX). The switch answers
// LACPDUs on these ports. Other frames pass a port only while the port is in sync.
func (n *Network) Bundle(names ...string) error {
	if !n.sw.addBundle(names) {
		return fmt.Errorf("network: cannot aggregate %v: there is no port, or a port is aggregated already", names)
	}
	return nil
}

// NICName returns the name of NIC n of a machine, counted from 0, on the switch, in DNS and in
// DHCP. NIC 0 has the name of the machine.
func NICName(machine string, n int) string {
	if n == 0 {
		return machine
	}
	return fmt.Sprintf("%s-nic%d", machine, n)
}

// Partition disconnects the ports of each group from the ports of the other groups. A group is a
// list of names. A port in no group stays connected to all ports, for example the gateway. Without
// groups, all ports are connected again.
func (n *Network) Partition(groups ...[]string) { n.sw.partition(groups) }

// Close ends all forwards and services of the network, and closes all ports of its switch. Running
// machines lose their carrier.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	forwards, ports := slices.Clone(n.forwards), n.ports
	n.mu.Unlock()
	for _, f := range forwards {
		f.Close()
	}
	for _, stop := range slices.Backward(n.closers) {
		stop()
	}
	for _, p := range ports {
		p.close()
	}
	if n.gateway != nil {
		n.gateway.Close()
	}
	return n.capture.close()
}
