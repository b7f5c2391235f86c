package lldp

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// wire is a fake link. The channel in has the frames that the machine receives, and the channel out
// the frames that the machine sends.
type wire struct {
	in     chan []byte
	out    chan []byte
	closed chan struct{}
	once   sync.Once
}

func newWire() *wire {
	return &wire{in: make(chan []byte), out: make(chan []byte, 100), closed: make(chan struct{})}
}

func (w *wire) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case frame := <-w.in:
		return copy(b, frame), nil, nil
	case <-w.closed:
		return 0, nil, net.ErrClosed
	}
}

func (w *wire) WriteTo(b []byte, _ net.Addr) (int, error) {
	w.out <- append([]byte{}, b...)
	return len(b), nil
}

func (w *wire) Close() error                     { w.once.Do(func() { close(w.closed) }); return nil }
func (w *wire) LocalAddr() net.Addr              { return nil }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// fixture is a running controller with one link. Each socket that the controller opens is a new
// wire in wires.
type fixture struct {
	links  *cell.Cell[[]Link]
	config *cell.Cell[Config]
	wires  chan *wire
	file   string
	*Controller
}

func start(t *testing.T, file string, cfg Config) (fixture, context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	f := fixture{
		links: cell.New([]Link{{Name: "eth0", Index: 2, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}}), config: cell.New(cfg), wires: make(chan *wire, 10), file: file,
	}
	f.Controller = New(Deps{
		Links: f.links.View(), Config: f.config.View(), File: func() string { return f.file },
		Listen: func(Link) (net.PacketConn, error) {
			w := newWire()
			f.wires <- w
			return w, nil
		},
		Event: func(kind, message string) { t.Log(kind, message) },
	})
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, ctx
}

// TestController sends a frame to a controller, and checks the neighbor and its label. The label
// stays after the neighbor has expired and the link was removed. After a restart, the controller
// reads the label from STATE.
func TestController(t *testing.T) {
	file := filepath.Join(t.TempDir(), "labels.json")
	rules := Config{Labels: []config.LLDPLabel{{Key: "example.com/switch", From: config.LLDPSystemName}}}
	f, ctx := start(t, file, rules)
	w := <-f.wires
	w.in <- []byte("no frame")
	w.in <- frameOf(chassis, port, ttl, tlv(typeSystemName, "leaf1"), end)
	all, err := cell.Wait(ctx, f.Neighbors(), func(all []Neighbor) bool { return len(all) == 1 })
	if err != nil {
		t.Fatal(err)
	}
	want := with(func(n *Neighbor) { n.Link, n.SystemName, n.Expires = "eth0", "leaf1", all[0].Expires })
	if !reflect.DeepEqual(all[0], want) {
		t.Errorf("%+v; want %+v", all[0], want)
	}
	labelled := func(l map[string]string) bool { return l["example.com/switch"] == "leaf1" }
	if _, err := cell.Wait(ctx, f.Labels(), labelled); err != nil {
		t.Fatal(err)
	}
	// This frame has TTL 1, so the neighbor expires after a second.
	w.in <- frameOf(chassis, port, tlv(typeTTL, "\x00\x01"), tlv(typeSystemName, "leaf1"), end)
	if _, err := cell.Wait(ctx, f.Neighbors(), func(all []Neighbor) bool { return len(all) == 0 }); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Labels().Get(); !labelled(got) {
		t.Errorf("after the expiry: %v", got)
	}
	w.in <- frameOf(chassis, port, ttl, tlv(typeSystemName, "leaf1"), end)
	if _, err := cell.Wait(ctx, f.Neighbors(), func(all []Neighbor) bool { return len(all) == 1 }); err != nil {
		t.Fatal(err)
	}
	f.links.Set(nil)
	if _, err := cell.Wait(ctx, f.Neighbors(), func(all []Neighbor) bool { return len(all) == 0 }); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.closed:
	case <-ctx.Done():
		t.Fatal("the socket of the removed link stays open")
	}

	again, ctx := start(t, file, rules)
	if _, err := cell.Wait(ctx, again.Labels(), labelled); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	again.config.Set(Config{})
	if _, err := cell.Wait(ctx, again.Labels(), func(l map[string]string) bool { return len(l) == 0 }); err != nil {
		t.Errorf("without the rule: %v", err)
	}
}

// TestFlood checks a neighbor that announces many names in a short time: the label changes at most
// once in decideInterval, and finally has the last name.
func TestFlood(t *testing.T) {
	f, ctx := start(t, "", Config{Labels: []config.LLDPLabel{{Key: "a", From: config.LLDPSystemName}}})
	_, before := f.Labels().Get()
	began := time.Now()
	w := <-f.wires
	for i := range 15 {
		w.in <- frameOf(chassis, port, ttl, tlv(typeSystemName, fmt.Sprint("leaf", i)), end)
	}
	if _, err := cell.Wait(ctx, f.Labels(), func(l map[string]string) bool { return l["a"] == "leaf14" }); err != nil {
		t.Fatal(err)
	}
	// The first change has no delay, so one more change is permitted.
	if _, after := f.Labels().Get(); after-before > 1+uint64(time.Since(began)/decideInterval) {
		t.Errorf("%d changes in %v", after-before, time.Since(began))
	}
}

// TestDamagedStore checks that the controller derives labels from frames if its stored file is
// damaged.
func TestDamagedStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "labels.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, ctx := start(t, file, Config{Labels: []config.LLDPLabel{{Key: "a", From: config.LLDPPort}}})
	w := <-f.wires
	w.in <- frameOf(chassis, port, ttl, end)
	if _, err := cell.Wait(ctx, f.Labels(), func(l map[string]string) bool { return l["a"] == "Ethernet1-17" }); err != nil {
		t.Fatal(err)
	}
}

// TestAnnounce checks that the machine announces itself only while the configuration contains a
// name for announcements. When this name is removed, the machine sends a last announcement with TTL
// 0.
func TestAnnounce(t *testing.T) {
	f, ctx := start(t, "", Config{})
	w := <-f.wires
	next := func() Neighbor {
		t.Helper()
		select {
		case frame := <-w.out:
			n, err := decode(frame)
			if err != nil {
				t.Fatal(err)
			}
			return n
		case <-ctx.Done():
			t.Fatal("no announcement")
		}
		return Neighbor{}
	}
	f.config.Set(Config{Announce: "m1"})
	if n := next(); n.SystemName != "m1" || n.Port != "eth0" || n.TTL != 120 {
		t.Errorf("%+v", n)
	}
	f.config.Set(Config{})
	if n := next(); n.SystemName != "m1" || n.TTL != 0 {
		t.Errorf("%+v", n)
	}
	if len(w.out) != 0 {
		t.Errorf("%d more announcements", len(w.out))
	}
}

// TestSocketFails checks that the socket of a link opens again after a failure.
func TestSocketFails(t *testing.T) {
	f, ctx := start(t, "", Config{})
	w := <-f.wires
	w.Close()
	select {
	case w = <-f.wires:
	case <-ctx.Done():
		t.Fatal("the controller does not open a second socket")
	}
	w.in <- frameOf(chassis, port, ttl, end)
	if _, err := cell.Wait(ctx, f.Neighbors(), func(all []Neighbor) bool { return len(all) == 1 }); err != nil {
		t.Error(err)
	}
}
