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

// TestPartition checks that a partition separates only the hosts of its two sides, and that a call
// without sides ends the partition.
func TestPartition(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a, b, c := guest(t, n, "a"), guest(t, n, "b"), guest(t, n, "c")
	n.Partition([]string{"a"}, []string{"b"})
	for _, x := range []struct {
		from, to *Host
		want     bool
	}{{a, b, false}, {b, a, false}, {a, c, true}, {c, b, true}, {b, n.gateway, true}} {
		if got := hears(t, x.from, x.to, x.want); got != x.want {
			t.Errorf("%s reaches %s: %v, want %v", x.from.Name(), x.to.Name(), got, x.want)
		}
	}
	n.Partition()
	if !hears(t, a, b, true) {
		t.Error("a does not reach b after the end of the partition")
	}
}

// TestFaults checks the effect of each fault of a machine's cable on the frames to this machine.
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
		t.Fatal("a does not reach b without faults")
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
		t.Error("a cable with a latency carries no frames")
	}
	if took := time.Since(begin); took < 60*time.Millisecond {
		t.Errorf("a frame arrived after %s on a cable with a latency of 60 ms", took)
	}
	if err := n.SetFaults("nobody", Faults{}); err == nil {
		t.Error("SetFaults accepts an unknown machine")
	}
}

// TestDelayBehindFrames checks that a delayed frame keeps its delay if frames without a delay are
// before it in the queue. The method more collects a batch of frames, and must stop at the delayed
// frame.
func TestDelayBehindFrames(t *testing.T) {
	p := &port{queue: make(chan queued, 4)}
	due := time.Now().Add(time.Minute)
	for _, q := range []queued{{f: frame("b")}, {f: frame("c"), due: due}, {f: frame("d")}} {
		p.queue <- q
	}
	batch, next := p.more(append(make([]frame, 0, 8), frame("a")))
	if len(batch) != 2 || string(batch[1]) != "b" || next == nil || string(next.f) != "c" || !next.due.Equal(due) || len(p.queue) != 1 {
		t.Errorf("the batch has %d frames, the next frame is %v, and %d frames remain; want 2, the delayed frame c, and 1", len(batch), next, len(p.queue))
	}
}

// TestStoppedMachine checks that a machine that reads no frames does not stop the other machines,
// and that its cable has the same faults after it is plugged in again, as after a power cut.
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
		t.Error("the stopped machine received every frame, so its queue was never full")
	}
	if !hears(t, a, b, true) {
		t.Error("a does not reach b while another machine reads no frames")
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
		t.Errorf("the faults after a power cut are %+v, want a loss of 0.5", f)
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
		t.Errorf("b received % x, %v, want the frame to the group", got, err)
	}
}

// TestReserve checks the addresses of a network: a name has one address, and addresses that are in
// use, reserved or outside the network are rejected.
func TestReserve(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{Subnet: netip.MustParsePrefix("10.5.0.0/28")})
	if got := n.Gateway().String(); got != "10.5.0.1" {
		t.Errorf("the address of the gateway is %s", got)
	}
	first, mac, err := n.reserve("a", netip.Addr{})
	if err != nil || first.String() != "10.5.0.11" {
		t.Errorf("the first address is %s, %v", first, err)
	}
	if again, same, err := n.reserve("a", netip.Addr{}); again != first || same != mac || err != nil {
		t.Errorf("a second call of reserve for a returns %s, %s, %v, want the same addresses", again, same, err)
	}
	for _, bad := range []string{"10.5.0.11", "10.5.0.1", "10.5.0.0", "10.5.0.15", "10.6.0.2"} {
		if _, _, err := n.reserve("b", netip.MustParseAddr(bad)); err == nil {
			t.Errorf("reserve accepts the address %s", bad)
		}
	}
	if _, err := NewNetwork(NetworkSpec{Subnet: netip.MustParsePrefix("10.0.0.0/8")}); err == nil {
		t.Error("NewNetwork accepts a subnet of /8")
	}
	if err := n.SetMachineDHCP("a", "loud"); err == nil {
		t.Error("SetMachineDHCP accepts an unknown mode")
	}
}
