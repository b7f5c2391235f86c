package vm

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// frameHeader is the length (4 bytes, big endian) that QEMU's stream backend puts before each
	// frame. Frames include it from reading to writing, so the switch never copies a frame.
	frameHeader = 4
	// maxFrame is larger than any frame of a guest without offloads (MTU 1500), and of a guest with
	// jumbo frames.
	maxFrame = 65536
	// portQueue is the maximum number of queued frames for a slow port; further frames are dropped.
	// A stopped machine must not stop the others.
	portQueue = 2048
	ethHeader = 14
)

// frame is the length prefix followed by an Ethernet frame. Several ports share it, so it must not
// be changed.
type frame []byte

func newFrame(size int) frame {
	f := make(frame, frameHeader+size)
	binary.BigEndian.PutUint32(f, uint32(size))
	return f
}

func (f frame) eth() []byte { return f[frameHeader:] }

type macAddr [6]byte

func (f frame) dst() macAddr { return macAddr(f[frameHeader : frameHeader+6]) }
func (f frame) src() macAddr { return macAddr(f[frameHeader+6 : frameHeader+12]) }

// group reports whether m is a broadcast or multicast address.
func (m macAddr) group() bool { return m[0]&1 == 1 }

func (m macAddr) String() string { return net.HardwareAddr(m[:]).String() }

// Faults are the faults on a port of the switch, in both directions.
type Faults struct {
	// Down drops every frame. The guest still sees a carrier; QEMU's set_link (Machine.Monitor)
	// removes the carrier too.
	Down bool
	// Latency is added to each frame to and from the port, in time outside.
	Latency time.Duration
	// Loss is the share of frames that are dropped, 0 to 1.
	Loss float64
}

// ethSwitch is a learning Ethernet switch with VLANs. It floods broadcast, multicast and unknown
// unicast, like real switches. Ports of a bundle are a single destination: a frame leaves by a
// single port.
type ethSwitch struct {
	capture *capture
	timeout time.Duration // lacpTimeout in time outside

	mu      sync.RWMutex
	ports   map[*port]struct{}
	table   map[station]*port
	cut     map[[2]string]bool // disconnected pairs of port names, in both orders
	vlans   map[string]PortVLANs
	bundles []*bundle
}

// station is an address in a VLAN.
type station struct {
	vlan int
	mac  macAddr
}

// port is a port of the switch. Frames for it are queued, and its own goroutine passes them to
// write.
type port struct {
	name  string
	sw    *ethSwitch
	queue chan queued
	done  chan struct{}
	write func([]frame) error

	closeOnce sync.Once
	finished  sync.WaitGroup
	faultMu   sync.Mutex
	faults    Faults
	random    *rand.Rand
	dropped   uint64
}

type queued struct {
	f   frame
	due time.Time // zero: immediately
}

func newSwitch(c *capture) *ethSwitch {
	return &ethSwitch{capture: c, timeout: lacpTimeout, ports: map[*port]struct{}{}, table: map[station]*port{}, cut: map[[2]string]bool{}, vlans: map[string]PortVLANs{}}
}

// attach adds a port. write is called from one goroutine with one or more frames; an error closes
// the port.
func (s *ethSwitch) attach(name string, write func([]frame) error) *port {
	var seed uint64
	for _, c := range []byte(name) {
		seed = seed*131 + uint64(c)
	}
	p := &port{name: name, sw: s, queue: make(chan queued, portQueue), done: make(chan struct{}), write: write,
		random: rand.New(rand.NewPCG(seed, 1))} // seeded by name, so loss is reproducible
	s.mu.Lock()
	s.ports[p] = struct{}{}
	s.mu.Unlock()
	p.finished.Go(p.drain)
	return p
}

// attachConn adds a port with QEMU's stream protocol on conn, and reads from it until it fails or p
// is closed.
func (s *ethSwitch) attachConn(name string, conn net.Conn) *port {
	p := s.attach(name, func(frames []frame) error {
		buffers := make(net.Buffers, len(frames))
		for i, f := range frames {
			buffers[i] = f
		}
		_, err := buffers.WriteTo(conn)
		return err
	})
	p.finished.Go(func() {
		<-p.done
		conn.Close()
	})
	p.finished.Go(func() {
		defer p.shut()
		var size [frameHeader]byte
		for {
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			n := binary.BigEndian.Uint32(size[:])
			if n > maxFrame {
				return // not QEMU's protocol: the rest cannot be parsed
			}
			f := newFrame(int(n))
			if _, err := io.ReadFull(conn, f.eth()); err != nil {
				return
			}
			p.receive(f)
		}
	})
	return p
}

// receive forwards a frame that arrived on p.
func (p *port) receive(f frame) {
	if len(f.eth()) < ethHeader {
		return
	}
	delay, ok := p.fate()
	if !ok {
		return
	}
	s, src, dst := p.sw, f.src(), f.dst()
	s.capture.write(f.eth())
	if dst.linkLocal() {
		s.slow(p, f)
		return
	}
	s.mu.RLock()
	vlan, inner, ok := s.vlans[p.name].enter(f)
	ok = ok && s.carries(p, time.Now())
	s.mu.RUnlock()
	if !ok {
		return
	}
	if !src.group() {
		s.learn(station{vlan, src}, p)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if to := s.table[station{vlan, dst}]; to != nil && !dst.group() {
		s.forward(p, to, vlan, inner, f, delay)
		return
	}
	done := map[*bundle]bool{}
	for to := range s.ports {
		if b := s.bundleOf(to.name); b != nil {
			if done[b] {
				continue
			}
			done[b] = true
		}
		s.forward(p, to, vlan, inner, f, delay)
	}
}

// forward sends a frame to a port, or to a single port of its bundle.
func (s *ethSwitch) forward(from, to *port, vlan int, inner, whole frame, delay time.Duration) {
	if b := s.bundleOf(to.name); b != nil {
		if b == s.bundleOf(from.name) {
			return
		}
		if to = s.member(b, whole); to == nil {
			return
		}
	}
	if to == from || s.cut[[2]string{from.name, to.name}] {
		return
	}
	if out, ok := s.vlans[to.name].leave(vlan, inner); ok {
		to.send(out, delay)
	}
}

// slow answers LACPDUs; the switch forwards no frame to a link-local group address.
func (s *ethSwitch) slow(p *port, f frame) {
	in, err := parseLACPDU(f.eth())
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.bundleOf(p.name); b != nil {
		answer := b.answer(p.name, in, time.Now(), s.timeout)
		src := switchSystem
		src[5] = byte(answer.Actor.Port)
		p.send(answer.frame(src), 0)
	}
}

// bundleOf returns the bundle of a port, or nil.
func (s *ethSwitch) bundleOf(name string) *bundle {
	for _, b := range s.bundles {
		if b.ports[name] != nil {
			return b
		}
	}
	return nil
}

// carries reports whether a port accepts frames: a port of a bundle only while it is active.
func (s *ethSwitch) carries(p *port, now time.Time) bool {
	b := s.bundleOf(p.name)
	return b == nil || slices.Contains(b.active(now, s.timeout), p.name)
}

// member returns the port of a bundle for a frame: frames of two stations use the same port, as a
// bond with the hash policy layer2 does.
func (s *ethSwitch) member(b *bundle, f frame) *port {
	active := b.active(time.Now(), s.timeout)
	if len(active) == 0 {
		return nil
	}
	name := active[int(f.src()[5]^f.dst()[5])%len(active)]
	for p := range s.ports {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (s *ethSwitch) setVLANs(name string, v PortVLANs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vlans[name] = v
	clear(s.table)
}

// addBundle aggregates ports; false if there is no port, or a port is aggregated already.
func (s *ethSwitch) addBundle(names []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return s.bundleOf(name) != nil }) {
		return false
	}
	s.bundles = append(s.bundles, newBundle(uint16(len(s.bundles)+1), names))
	clear(s.table)
	return true
}

func (s *ethSwitch) learn(m station, p *port) {
	s.mu.RLock()
	known := s.table[m] == p
	s.mu.RUnlock()
	if known {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, here := s.ports[p]; here {
		s.table[m] = p
	}
}

// send queues a frame for p; delay is the latency of the sender's port.
func (p *port) send(f frame, delay time.Duration) {
	own, ok := p.fate()
	if !ok {
		return
	}
	q := queued{f: f}
	if d := delay + own; d > 0 {
		q.due = time.Now().Add(d)
	}
	select {
	case p.queue <- q:
	default:
		p.faultMu.Lock()
		p.dropped++
		p.faultMu.Unlock()
	}
}

// fate returns the latency of p for a frame, and whether the frame is delivered.
func (p *port) fate() (time.Duration, bool) {
	p.faultMu.Lock()
	defer p.faultMu.Unlock()
	if p.faults.Down || p.faults.Loss > 0 && p.random.Float64() < p.faults.Loss {
		return 0, false
	}
	return p.faults.Latency, true
}

func (p *port) setFaults(f Faults) {
	p.faultMu.Lock()
	defer p.faultMu.Unlock()
	p.faults = f
}

// drain writes the queued frames, in batches.
func (p *port) drain() {
	defer p.shut()
	timer := time.NewTimer(0)
	defer timer.Stop()
	batch := make([]frame, 0, 64)
	for {
		var q queued
		select {
		case q = <-p.queue:
		case <-p.done:
			return
		}
		if wait := time.Until(q.due); !q.due.IsZero() && wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-p.done:
				return
			}
		}
		batch = append(batch[:0], q.f)
		if q.due.IsZero() {
			batch = p.more(batch)
		}
		if err := p.write(batch); err != nil {
			return
		}
		clear(batch)
	}
}

// more adds the queued frames to a batch. A frame with a due time ends the batch and is written in
// its turn: the latency was just set, and one frame without its delay does no harm.
func (p *port) more(batch []frame) []frame {
	for len(batch) < cap(batch) {
		select {
		case q := <-p.queue:
			batch = append(batch, q.f)
			if !q.due.IsZero() {
				return batch
			}
		default:
			return batch
		}
	}
	return batch
}

// shut removes the port from the switch. It does not wait for the port's goroutines, so they may
// call it themselves.
func (p *port) shut() {
	p.closeOnce.Do(func() {
		s := p.sw
		s.mu.Lock()
		delete(s.ports, p)
		for m, to := range s.table {
			if to == p {
				delete(s.table, m)
			}
		}
		s.mu.Unlock()
		close(p.done)
	})
}

// close removes the port from the switch and waits for the end of its goroutines.
func (p *port) close() {
	p.shut()
	p.finished.Wait()
}

// partition disconnects ports of different groups. Ports in no group are connected to all ports.
func (s *ethSwitch) partition(groups [][]string) {
	cut := map[[2]string]bool{}
	for i, a := range groups {
		for j, b := range groups {
			if i == j {
				continue
			}
			for _, x := range a {
				for _, y := range b {
					cut[[2]string{x, y}] = true
				}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}
