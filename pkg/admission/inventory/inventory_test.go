package inventory

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// example returns an inventory with a value in each field.
func example() Host {
	return Host{
		Serial: "SN-1", UUID: "6f1f6c2e-0000-4000-8000-000000000001", Vendor: "QEMU", Product: "Standard PC", Firmware: "2025.02", SecureBoot: "enabled", Controller: "169.254.1.1",
		CPUModel: "QEMU TCG CPU", CPUs: 2, MemoryMiB: 1968, Release: "0.2.0", Medium: "memory",
		Disks: []Disk{{Name: "vda", SizeMiB: 8192, Model: "m", Serial: "disk0"}},
		NICs: []NIC{{Name: "eth0", MAC: "52:54:00:00:00:01", Driver: "virtio_net", SpeedMbps: 10000, Carrier: true,
			Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.12")}, Neighbors: []Neighbor{{System: "leaf1", Port: "swp1"}}}},
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestRoundTrip checks that Verify returns the key and the inventory of a request.
func TestRoundTrip(t *testing.T) {
	key, binding := newKey(t), bytes.Repeat([]byte{1}, 32)
	r, err := NewRequest(binding, key, example())
	if err != nil {
		t.Fatal(err)
	}
	public, got, err := r.Verify(binding)
	if err != nil || !public.Equal(&key.PublicKey) || !reflect.DeepEqual(got, example()) {
		t.Errorf("%v\n%+v, want\n%+v", err, got, example())
	}
}

// TestForged checks that the signature of a request is valid only for its key, its inventory and
// its connection, and only with a key of the expected kind.
func TestForged(t *testing.T) {
	key, binding := newKey(t), bytes.Repeat([]byte{1}, 32)
	r, err := NewRequest(binding, key, example())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := NewRequest(binding, newKey(t), example())
	if err != nil {
		t.Fatal(err)
	}
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wideKey, err := x509.MarshalPKIXPublicKey(&wide.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		binding []byte
		change  func(*Request)
		want    string
	}{
		"another connection":           {bytes.Repeat([]byte{2}, 32), func(*Request) {}, "the signature is not of this key and this connection"},
		"connection without a binding": {nil, func(*Request) {}, "the signature is not"},
		"another inventory":            {binding, func(r *Request) { r.Inventory = bytes.Replace(r.Inventory, []byte("SN-1"), []byte("SN-2"), 1) }, "the signature is not"},
		"another key":                  {binding, func(r *Request) { r.Key = foreign.Key }, "the signature is not"},
		"no signature":                 {binding, func(r *Request) { r.Signature = nil }, "the signature is not"},
		"no key":                       {binding, func(r *Request) { r.Key = nil }, "cannot parse the key"},
		"key of another kind":          {binding, func(r *Request) { r.Key = wideKey }, "not of the kind P-256"},
	} {
		forged := r
		c.change(&forged)
		if _, _, err := forged.Verify(c.binding); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestParseHost checks which inventories ParseHost accepts, and that it replaces unprintable
// characters and shortens long texts.
func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{
		`{}`:                            "",
		`{"future":{"a":[1]}}`:          "", // a field of a newer version
		``:                              "cannot parse",
		`[]`:                            "cannot parse",
		`{"cpus":"2"}`:                  "cannot parse",
		`{"cpus":-1}`:                   "processors is out of range",
		`{"cpus":70000}`:                "processors is out of range",
		`{"memoryMiB":-1}`:              "memory is out of range",
		`{"disks":[{"sizeMiB":-1}]}`:    "size of a disk",
		`{"nics":[{"mac":"x"}]}`:        "MAC of a link",
		`{"nics":[{"speedMbps":-1}]}`:   "speed, the addresses",
		`{"nics":[{"addresses":[""]}]}`: "address of a link is invalid",
		`{"nics":[{"addresses":["fe80::1%eth0"]}]}`:             "address of a link is invalid",
		`{"nics":[{"addresses":["10.0.0.300"]}]}`:               "cannot parse",
		`{"disks":[` + strings.Repeat(`{},`, maxDisks) + `{}]}`: "33 disks",
		`{"nics":[` + strings.Repeat(`{},`, maxNICs) + `{}]}`:   "17 links",
		`{"serial":"` + strings.Repeat("x", maxHost) + `"}`:     "at most 16384 are allowed",
	} {
		_, err := ParseHost([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
	h, err := ParseHost([]byte(`{"serial":"\u001b[31m` + strings.Repeat("x", 100) + `","nics":[{"name":"e\n","neighbors":[{"system":"\u202e"}]}]}`))
	if err != nil || h.Serial != "?[31m"+strings.Repeat("x", 59) || h.NICs[0].Name != "e?" || h.NICs[0].Neighbors[0].System != "?" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestBounded checks that Bounded limits the lists, texts and numbers of a huge inventory and does
// not change its argument. A request with this inventory must be valid and within the limit of a
// message.
func TestBounded(t *testing.T) {
	long := strings.Repeat("<", 200)
	huge := Host{Serial: long, CPUs: -1, MemoryMiB: 1 << 62}
	for range 100 {
		huge.Disks = append(huge.Disks, Disk{Name: long, Model: long, SizeMiB: -5})
		huge.NICs = append(huge.NICs, NIC{Name: long, SpeedMbps: -1, Addresses: make([]netip.Addr, 100), Neighbors: make([]Neighbor, 100)})
	}
	b := huge.Bounded()
	if len(b.Disks) != maxDisks || len(b.NICs) != maxNICs || len(b.NICs[0].Addresses) != maxAddresses || len(b.NICs[0].Neighbors) != maxNeighbors || len(b.Serial) != maxText {
		t.Errorf("%d disks, %d links, or another list or text has another length", len(b.Disks), len(b.NICs))
	}
	if b.CPUs != 0 || b.MemoryMiB != 0 || b.Disks[0].SizeMiB != 0 || b.NICs[0].SpeedMbps != 0 {
		t.Errorf("numbers that are out of range are not 0: %+v", b)
	}
	if len(huge.Disks) != 100 || huge.Disks[0].Name != long {
		t.Error("Bounded has changed its argument")
	}
	binding := make([]byte, 32)
	r, err := NewRequest(binding, newKey(t), huge)
	if err != nil {
		t.Fatal(err)
	}
	if _, h, err := r.Verify(binding); err != nil || h.Serial == "" {
		t.Errorf("the request with a huge inventory is not valid: %v: %+v", err, h)
	}
	if text, err := json.Marshal(r); err != nil || len(text) > maxMessage {
		t.Errorf("the request has %d bytes, want at most maxMessage, %v", len(text), err)
	}
}

// keys returns the keys of the entries, separated by blanks.
func keys(l []Entry) string {
	var out []string
	for _, e := range l {
		out = append(out, e.Key)
	}
	return strings.Join(out, " ")
}

// TestList checks that Record lists machines up to the limits, per address and in total, and that a
// machine that is silent for expireAfter is not listed any more.
func TestList(t *testing.T) {
	var l List
	tell := func(key, address string, at time.Duration) Answer {
		t.Helper()
		var a Answer
		l, a = l.Record(Entry{Key: key, Address: netip.MustParseAddr(address)}, start.Add(at))
		return a
	}
	for i := range maxPerAddress {
		if a := tell(fmt.Sprint("a", i), "10.0.0.1", time.Duration(i)*time.Second); !a.Listed {
			t.Errorf("machine %d with the same address is not listed: %+v", i, a)
		}
	}
	if a := tell("a9", "10.0.0.1", 10*time.Second); a.Listed || !strings.Contains(a.Reason, "with the address 10.0.0.1") {
		t.Errorf("%+v", a)
	}
	// A listed machine can repeat its message although its address has reached the limit.
	if a := tell("a0", "10.0.0.1", 20*time.Second); !a.Listed {
		t.Errorf("%+v", a)
	}
	if a := tell("b", "10.0.0.2", 30*time.Second); !a.Listed {
		t.Errorf("%+v", a)
	}
	if got := keys(l.Current(start.Add(30 * time.Second))); got != "a0 a1 a2 a3 b" {
		t.Errorf("listed machines: %s", got)
	}
	if e := l["a0"]; !e.Since.Equal(start) || !e.Last.Equal(start.Add(20*time.Second)) {
		t.Errorf("%+v", e)
	}
	if got := keys(l.Without(func(key string) bool { return key == "a0" }).Current(start)); strings.Contains(got, "a0") || !strings.Contains(keys(l.Current(start)), "a0") {
		t.Errorf("without a0: %s", got)
	}
	// The machines a1, a2 and a3 have sent nothing for the time expireAfter.
	if got := keys(l.Current(start.Add(expireAfter + 5*time.Second))); got != "a0 b" {
		t.Errorf("listed machines: %s", got)
	}
	var full List
	var a Answer
	for i := range maxEntries {
		full, a = full.Record(Entry{Key: fmt.Sprint(i), Address: netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}, start)
	}
	if !a.Listed {
		t.Errorf("%+v", a)
	}
	full, a = full.Record(Entry{Key: "x", Address: netip.MustParseAddr("10.0.0.1")}, start)
	if a.Listed || len(full) != maxEntries || !strings.Contains(a.Reason, "too many machines are listed (64)") {
		t.Errorf("%+v, %d", a, len(full))
	}
	if _, a = full.Record(Entry{Key: "x", Address: netip.MustParseAddr("10.0.0.1")}, start.Add(expireAfter)); !a.Listed {
		t.Errorf("not listed after the other machines have expired: %+v", a)
	}
}

// TestOverAConnection checks that Serve receives a request that Send has sent, and that Send
// returns the answer of Serve. Send rejects an invalid answer.
func TestOverAConnection(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	served := make(chan error, 1)
	go func() {
		served <- Serve(there, func(r Request) Answer { return Answer{Reason: string(r.Inventory)} })
	}()
	if a, err := Send(here, Request{Inventory: []byte("text")}); err != nil || a.Listed || a.Reason != "text" {
		t.Errorf("%+v, %v", a, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	for _, text := range []string{"", "[]\n", strings.Repeat(" ", maxAnswer) + "{}"} {
		if a, err := Send(stranger{strings.NewReader(text), io.Discard}, Request{}); err == nil {
			t.Errorf("Send accepts the invalid answer %.20q: %+v", text, a)
		}
	}
}
