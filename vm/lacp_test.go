package vm

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// TestLACPDU checks the encoding of an LACPDU against the bytes of IEEE 802.1AX-2020, figure 6-7.
func TestLACPDU(t *testing.T) {
	actor := lacpInfo{SystemPriority: 0xffff, System: macAddr{2, 0, 0, 0, 0, 1}, Key: 9, PortPriority: 255, Port: 1, State: lacpActive | lacpAggregation}
	p := lacpdu{Actor: actor, Partner: lacpInfo{SystemPriority: 1, System: switchSystem, Key: 7, PortPriority: 2, Port: 3, State: lacpSync}}
	eth := p.frame(macAddr{2, 0, 0, 0, 0, 2}).eth()
	want := []byte{0x01, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 2, 0x88, 0x09, 1, 1,
		1, 20, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0, 9, 0, 255, 0, 1, 0x05, 0, 0, 0,
		2, 20, 0, 1, 0x52, 0x54, 0x4f, 0xff, 0xff, 0xff, 0, 7, 0, 2, 0, 3, 0x08, 0, 0, 0,
		3, 16}
	if !bytes.HasPrefix(eth, want) || len(eth) != 124 || bytes.ContainsFunc(eth[len(want):], func(r rune) bool { return r != 0 }) {
		t.Errorf("the frame is % x\nwant % x and zeros, 124 bytes", eth, want)
	}
	if back, err := parseLACPDU(eth); err != nil || back != p {
		t.Errorf("parseLACPDU decodes the frame as %+v, %v", back, err)
	}
	for cut := range eth[:56] {
		if _, err := parseLACPDU(eth[:cut]); err == nil {
			t.Errorf("parseLACPDU accepts a frame of %d bytes", cut)
		}
	}
}

// TestBundle checks that the switch uses a port of a bundle while the machine's end of the cable is
// in sync, has sent an LACPDU within the timeout, and belongs to the same bond as the other ports.
func TestBundle(t *testing.T) {
	now := time.Unix(1000, 0)
	b := newBundle(1, []string{"m", "m/1"})
	hello := func(port string, system byte, state uint8) uint8 {
		info := lacpInfo{System: macAddr{2, 0, 0, 0, 0, system}, Key: 9, State: state}
		return b.answer(port, lacpdu{Actor: info}, now, lacpTimeout).Actor.State
	}
	const offers = lacpActive | lacpAggregation
	check := func(says string, want ...string) {
		t.Helper()
		if got := b.active(now, lacpTimeout); !slices.Equal(got, want) {
			t.Errorf("%s: the active ports are %q, want %q", says, got, want)
		}
	}
	check("before the first LACPDU")
	if s := hello("m", 1, lacpActive); s&lacpSync != 0 {
		t.Errorf("the answer to a port that cannot be aggregated is %b, want a state without sync", s)
	}
	if s := hello("m", 1, offers); s&lacpSync == 0 || s&lacpDistributing != 0 {
		t.Errorf("the answer to an offer is %b, want sync, but not distributing", s)
	}
	check("the port is not in sync")
	if s := hello("m", 1, offers|lacpSync); s&lacpDistributing == 0 {
		t.Errorf("the answer to a port in sync is %b, want distributing", s)
	}
	check("one port is in sync", "m")
	hello("m/1", 1, offers|lacpSync)
	check("two ports are in sync", "m", "m/1")
	if s := hello("m/1", 2, offers|lacpSync); s&lacpSync != 0 {
		t.Errorf("the answer to a port of another bond is %b, want a state without sync", s)
	}
	check("the second port belongs to another bond", "m")
	now = now.Add(lacpTimeout / 2)
	hello("m/1", 1, offers|lacpSync)
	now = now.Add(lacpTimeout / 2)
	check("the first port is silent", "m/1")
	now = now.Add(lacpTimeout)
	check("both ports are silent")
}

// testPort is a port of the switch with the frames that it received.
type testPort struct {
	*port
	frames chan []byte
}

func plugTest(t *testing.T, n *Network, name string) testPort {
	t.Helper()
	p := testPort{frames: make(chan []byte, 100)}
	p.port = n.sw.attach(name, func(frames []frame) error {
		for _, f := range frames {
			p.frames <- bytes.Clone(f.eth())
		}
		return nil
	})
	t.Cleanup(p.close)
	return p
}

// next returns the next frame with an EtherType. A frame with a VLAN tag has the EtherType
// etherVLAN.
func (p testPort) next(t *testing.T, kind uint16) []byte {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case f := <-p.frames:
			if uint16(f[12])<<8|uint16(f[13]) == kind {
				return f
			}
		case <-deadline:
			t.Fatalf("%s received no frame of type %#x", p.name, kind)
		}
	}
}

// count returns the number of received frames with an EtherType, and drops all received frames.
// Before the call, a test waits for a frame of another type that was sent later. Frames from a
// single port arrive in order, so all earlier frames have then arrived.
func (p testPort) count(kind uint16) (n int) {
	for {
		select {
		case f := <-p.frames:
			if uint16(f[12])<<8|uint16(f[13]) == kind {
				n++
			}
		default:
			return n
		}
	}
}

// ether returns a frame with an EtherType. The content begins after the EtherType.
func ether(dst, src macAddr, kind uint16, content ...byte) frame {
	f := newFrame(ethHeader + 46)
	copy(f.eth(), dst[:])
	copy(f.eth()[6:], src[:])
	f.eth()[12], f.eth()[13] = byte(kind>>8), byte(kind)
	copy(f.eth()[14:], content)
	return f
}

const (
	testType = 0x88b5 // reserved for experiments (IEEE 802)
	markType = 0x88b6 // of a frame that is sent after the frames that a test counts
)

var everyone = macAddr{255, 255, 255, 255, 255, 255}

// TestBundleOnSwitch checks that the switch answers LACPDUs, sends a single copy of each frame to
// the bundle, and uses the second port when the first port fails.
func TestBundleOnSwitch(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	if err := n.Bundle("m", "m/1"); err != nil {
		t.Fatal(err)
	}
	if err := n.Bundle("m/1"); err == nil {
		t.Error("Bundle accepts a port that is in another bundle")
	}
	first, second, other := plugTest(t, n, "m"), plugTest(t, n, "m/1"), plugTest(t, n, "other")
	bond, peer := macAddr{2, 0, 0, 0, 0, 1}, macAddr{2, 0, 0, 0, 0, 9}
	first.receive(ether(everyone, bond, testType))
	first.receive(lacpdu{Actor: lacpInfo{System: bond, Key: 9, Port: 1, State: lacpActive | lacpAggregation | lacpSync}}.frame(bond))
	answer, err := parseLACPDU(first.next(t, etherSlow))
	if err != nil || answer.Actor.State&lacpDistributing == 0 || answer.Partner.System != bond {
		t.Fatalf("the answer is %+v, %v", answer, err)
	}
	first.receive(ether(everyone, bond, markType))
	other.next(t, markType)
	if got := other.count(testType); got != 0 {
		t.Error("the switch forwards a frame of a port that is not in sync")
	}
	second.receive(lacpdu{Actor: lacpInfo{System: bond, Key: 9, Port: 2, State: lacpActive | lacpAggregation | lacpSync}}.frame(bond))
	second.next(t, etherSlow)
	other.receive(ether(everyone, peer, testType))
	// Each port also receives a later frame of the type markType. The function count below ends at
	// this frame.
	mark := ether(everyone, peer, markType)
	first.send(mark, 0)
	second.send(mark, 0)
	count := func(p testPort) (n int) {
		for {
			f := <-p.frames
			switch uint16(f[12])<<8 | uint16(f[13]) {
			case testType:
				n++
			case markType:
				return n
			}
		}
	}
	if a, b := count(first), count(second); a+b != 1 {
		t.Errorf("the ports of the bundle received %d and %d copies, want a single copy", a, b)
	}
	n.sw.mu.Lock()
	n.sw.bundles[0].ports["m"].heard = time.Time{}
	n.sw.mu.Unlock()
	other.receive(ether(bond, peer, testType))
	second.next(t, testType)
}

// TestVLANs checks which ports receive a frame, and in which form.
func TestVLANs(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	for name, v := range map[string]PortVLANs{"trunk": {Untagged: 1, Tagged: []int{100, 200}}, "access": {Untagged: 100}, "one": {Untagged: 1}} {
		if err := n.SetVLANs(name, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []PortVLANs{{Untagged: 4095}, {Tagged: []int{0}}, {Tagged: []int{5, 5}}, {Untagged: 5, Tagged: []int{5}}} {
		if n.SetVLANs("bad", bad) == nil {
			t.Errorf("SetVLANs accepts %+v", bad)
		}
	}
	trunk, access, one, plain := plugTest(t, n, "trunk"), plugTest(t, n, "access"), plugTest(t, n, "one"), plugTest(t, n, "plain")
	a, b := macAddr{2, 0, 0, 0, 0, 1}, macAddr{2, 0, 0, 0, 0, 2}

	trunk.receive(ether(everyone, a, etherVLAN, 0, 100, testType>>8, testType&0xff))
	access.next(t, testType) // without the tag
	trunk.receive(ether(everyone, a, etherVLAN, 0, 201, testType>>8, testType&0xff))
	trunk.receive(ether(everyone, a, testType))
	one.next(t, testType)
	access.receive(ether(a, b, testType))
	if f := trunk.next(t, etherVLAN); f[15] != 100 || uint16(f[16])<<8|uint16(f[17]) != testType {
		t.Errorf("the trunk received % x, want a frame with the tag 100", f[:20])
	}
	// Ports without VLANs ignore tags. They exchange frames only with each other, with unchanged
	// tags.
	other := plugTest(t, n, "other")
	plain.receive(ether(everyone, b, etherVLAN, 0, 100, testType>>8, testType&0xff))
	other.next(t, etherVLAN)
	for _, p := range []testPort{trunk, access, one} {
		if p.count(testType)+p.count(etherVLAN) != 0 {
			t.Errorf("%s received a frame of another VLAN", p.name)
		}
	}
}

// TestVLANHosts checks that a host in a VLAN reaches a host of the same VLAN only.
func TestVLANHosts(t *testing.T) {
	n := newTestNetwork(t, NetworkSpec{})
	a, b, c := guest(t, n, "a"), guest(t, n, "b"), guest(t, n, "c")
	for name, id := range map[string]int{"a": 100, "b": 100, "c": 200} {
		if err := n.SetVLANs(name, PortVLANs{Untagged: id}); err != nil {
			t.Fatal(err)
		}
	}
	if !hears(t, a, b, true) {
		t.Error("a does not reach b in the same VLAN")
	}
	if hears(t, a, c, false) {
		t.Error("a reaches c in another VLAN")
	}
}
