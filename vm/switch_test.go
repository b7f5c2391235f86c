package vm

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// hears reports whether a UDP packet of the host from reaches the host to. It waits longer if the
// packet is expected, because the computer may be busy.
func hears(t *testing.T, from, to *Host, expected bool) bool {
	t.Helper()
	patience := 400 * time.Millisecond
	if expected {
		patience = 20 * time.Second
	}
	in, err := to.ListenPacket(7)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := from.DialContext(t.Context(), "udp", netip.AddrPortFrom(to.Addr(), 7).String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in.SetReadDeadline(time.Now().Add(patience))
	out.Write([]byte("hello"))
	_, _, err = in.ReadFrom(make([]byte, 16))
	return err == nil
}

func TestPartition(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a, b, c := guest(t, n, "a"), guest(t, n, "b"), guest(t, n, "c")
	n.Partition([]string{"a"}, []string{"b"})
	for _, x := range []struct {
		from, to *Host
		want     bool
	}{{a, b, false}, {b, a, false}, {a, c, true}, {c, b, true}, {b, n.gateway, true}} {
		if got := hears(t, x.from, x.to, x.want); got != x.want {
			t.Errorf("%s → %s: %v, expected %v", x.from.Name(), x.to.Name(), got, x.want)
		}
	}
	n.Partition()
	if !hears(t, a, b, true) {
		t.Error("the network is not whole again")
	}
}

func TestFaults(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a, b := guest(t, n, "a"), guest(t, n, "b")
	set := func(f Faults) {
		t.Helper()
		if err := n.SetFaults("b", f); err != nil {
			t.Fatal(err)
		}
	}
	if !hears(t, a, b, true) {
		t.Fatal("a healthy network does not work")
	}
	set(Faults{Down: true})
	if hears(t, a, b, false) {
		t.Error("a cable that is down carries frames")
	}
	set(Faults{Loss: 1})
	if hears(t, a, b, false) {
		t.Error("a loss of 100 % carries frames")
	}
	set(Faults{Latency: 60 * time.Millisecond})
	begin := time.Now()
	if !hears(t, a, b, true) {
		t.Error("a slow cable carries nothing")
	}
	if took := time.Since(begin); took < 60*time.Millisecond {
		t.Errorf("60 ms of latency took %s", took)
	}
	if err := n.SetFaults("nobody", Faults{}); err == nil {
		t.Error("faults of an unknown machine were set")
	}
}

// TestDelayBehindFrames checks that a frame keeps its delay behind frames without a delay.
func TestDelayBehindFrames(t *testing.T) {
	p := &port{queue: make(chan queued, 4)}
	due := time.Now().Add(time.Minute)
	for _, q := range []queued{{f: frame("b")}, {f: frame("c"), due: due}, {f: frame("d")}} {
		p.queue <- q
	}
	batch, next := p.more(append(make([]frame, 0, 8), frame("a")))
	if len(batch) != 2 || string(batch[1]) != "b" || next == nil || string(next.f) != "c" || !next.due.Equal(due) || len(p.queue) != 1 {
		t.Errorf("%d frames, then %v, and %d remain", len(batch), next, len(p.queue))
	}
}

// TestStoppedMachine checks that a machine that reads no frames does not stop the other machines,
// and that its cable has the same faults after a power cut.
func TestStoppedMachine(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a, b := guest(t, n, "a"), guest(t, n, "b")
	stopped, err := n.plug("stopped")
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	address := macAddr{2, 0, 0, 0, 0, 9}
	n.sw.learn(station{0, address}, n.ports["stopped"])
	flood := newFrame(1500)
	copy(flood.eth(), address[:])
	copy(flood.eth()[6:], a.mac[:])
	for range 3 * portQueue {
		a.port.receive(flood)
	}
	n.ports["stopped"].faultMu.Lock()
	dropped := n.ports["stopped"].dropped
	n.ports["stopped"].faultMu.Unlock()
	if dropped == 0 {
		t.Error("the machine is not stopped: it took every frame")
	}
	if !hears(t, a, b, true) {
		t.Error("a stopped machine stops the others")
	}
	if err := n.SetFaults("stopped", Faults{Loss: 0.5}); err != nil {
		t.Fatal(err)
	}
	again, err := n.plug("stopped")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if f := n.ports["stopped"].faults; f.Loss != 0.5 {
		t.Errorf("faults after a power cut: %+v", f)
	}
}

// TestMulticast checks that frames to groups reach all ports, as IPv6 neighbor discovery requires.
func TestMulticast(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a := guest(t, n, "a")
	cable, err := n.plug("b")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(cable)
	cable.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f := newFrame(60)
	copy(f.eth(), []byte{0x33, 0x33, 0, 0, 0, 1})
	copy(f.eth()[6:], a.mac[:])
	a.port.receive(f)
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	got := make([]byte, len(f))
	if _, err := conn.Read(got); err != nil || string(got) != string(f) {
		t.Errorf("got % x, %v", got, err)
	}
}

func TestReserve(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{Subnet: netip.MustParsePrefix("10.5.0.0/28")})
	if got := n.Gateway().String(); got != "10.5.0.1" {
		t.Errorf("gateway %s", got)
	}
	first, mac, err := n.reserve("a", netip.Addr{})
	if err != nil || first.String() != "10.5.0.11" {
		t.Errorf("%s, %v", first, err)
	}
	if again, same, err := n.reserve("a", netip.Addr{}); again != first || same != mac || err != nil {
		t.Errorf("the same name got %s, %s, %v", again, same, err)
	}
	for _, bad := range []string{"10.5.0.11", "10.5.0.1", "10.5.0.0", "10.5.0.15", "10.6.0.2"} {
		if _, _, err := n.reserve("b", netip.MustParseAddr(bad)); err == nil {
			t.Errorf("%s was given away", bad)
		}
	}
	if _, err := NewNetwork(NetworkSpec{Subnet: netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("a /8 was accepted")
	}
	if err := n.SetMachineDHCP("a", "loud"); err == nil {
		t.Error("an unknown DHCP mode was accepted")
	}
}
