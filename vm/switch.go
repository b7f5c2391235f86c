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
	// frameHeader is the size in bytes of the length (big endian) that QEMU's stream backend puts
	// before each frame. A frame in the switch includes this length, so the switch can write the
	// frame without a copy.
	frameHeader = 4
	// maxFrame is the maximum size of a frame in bytes. Frames of guests are smaller, even jumbo
	// frames.
	maxFrame = 65536
	// portQueue is the maximum number of queued frames of a port. The switch drops further frames,
	// so a stopped machine does not stop the other machines.
	portQueue = 2048
	ethHeader = 14
)

// frame is a length prefix followed by an Ethernet frame. Several ports share a frame, so no
// function changes it.
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

// Faults are the faults on a port of the switch. They apply to both directions.
type Faults struct {
	// Down drops every frame. The guest still has a carrier; Machine.SetCable removes the carrier,
	// too.
	Down bool
	// Latency is the delay of each frame to and from the port, in the time of this computer and not
	// of the guests (Clock).
	Latency time.Duration
	// Loss is the share of frames that are dropped, 0 to 1.
	Loss float64
}

// ethSwitch is a learning Ethernet switch with VLANs. It floods broadcast, multicast and unknown
// unicast frames, like real switches. A bundle is a set of ports that work as a single link (LACP).
// A frame for a bundle leaves through a single port of the bundle.
type ethSwitch struct {
	capture *capture
	timeout time.Duration // lacpTimeout in the time of this computer

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

// port is a port of the switch. The switch queues the frames for a port, and a goroutine of the
// port passes them to write.
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
	dropped   uint64 // number of frames that were dropped because queue was full
}

type queued struct {
	f   frame
	due time.Time // zero: immediately
}

func newSwitch(c *capture) *ethSwitch {
	return &ethSwitch{capture: c, timeout: lacpTimeout, ports: map[*port]struct{}{}, table: map[station]*port{}, cut: map[[2]string]bool{}, vlans: map[string]PortVLANs{}}
}

// attach adds a port. A goroutine of the port calls the function write with batches of frames. An
// error of write closes the port.
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

// attachConn adds a port for a QEMU that uses its stream protocol on conn. The port is closed when
// conn fails, and conn is closed when the port is closed.
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

// forward sends a frame to a port or, if the port belongs to a bundle, to a single port of the
// bundle. whole is the frame as it arrived, inner the frame without its VLAN tag.
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

// slow handles a frame to a link-local group address, which the switch never forwards. It answers
// an LACPDU and drops any other frame.
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

// carries reports whether the switch accepts frames from a port. A port of a bundle must be active.
func (s *ethSwitch) carries(p *port, now time.Time) bool {
	b := s.bundleOf(p.name)
	return b == nil || slices.Contains(b.active(now, s.timeout), p.name)
}

// member returns the port through which a frame leaves for a bundle; nil if no port is active. All
// frames between two stations use the same port, as with the hash policy layer2 of a bond.
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

// addBundle aggregates ports. It returns false if there is no port, or if a port is aggregated
// already.
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

// learn records that a station is behind p.
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

// send queues a frame for p, and drops it if the queue is full. delay is the latency of the
// sender's port.
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

// fate applies the faults of p to a frame. It returns the latency of p, and false if p drops the
// frame.
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

// drain writes the queued frames in batches until the port is closed.
func (p *port) drain() {
	defer p.shut()
	timer := time.NewTimer(0)
	defer timer.Stop()
	batch := make([]frame, 0, 64)
	var next *queued // frame with a delay behind the last batch
	for {
		var q queued
		if next != nil {
			q, next = *next, nil
		} else {
			select {
			case q = <-p.queue:
			case <-p.done:
				return
			}
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
			batch, next = p.more(batch)
		}
		if err := p.write(batch); err != nil {
			return
		}
		clear(batch)
	}
}

// more adds queued frames to a batch. It ends at a frame with a delay, which it returns in next.
func (p *port) more(batch []frame) (full []frame, next *queued) {
	for len(batch) < cap(batch) {
		select {
		case q := <-p.queue:
			if !q.due.IsZero() {
				return batch, &q
			}
			batch = append(batch, q.f)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// shut removes the port from the switch. It does not wait for the port's goroutines, so these
// goroutines may call shut.
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
