package hosts

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/pki"
)

// reporterTest is a Reporter in a fake network with receivers of inventories.
type reporterTest struct {
	waits   *cell.Cell[bool]
	domains *cell.Cell[[]string]
	names   map[string][]netip.Addr
	answers *cell.Cell[map[string]inventory.Answer] // by address; none: unreachable
	sent    chan string
	events  chan string
	adopt   func(from netip.Addr, a inventory.Answer) error
	tick    chan time.Time
}

func newReporterTest(t *testing.T) *reporterTest {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	r := &reporterTest{
		waits: cell.New(true), domains: cell.New([]string(nil)), names: map[string][]netip.Addr{}, answers: cell.New(map[string]inventory.Answer{}),
		sent: make(chan string, 100), events: make(chan string, 100), tick: make(chan time.Time),
	}
	reporter := NewReporter(ReporterDeps{
		Waits: r.waits.View(), Domains: r.domains.View(),
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if found := r.names[name]; found != nil {
				return found, nil
			}
			return nil, errors.New("no such host")
		},
		Host: func() inventory.Host { return inventory.Host{Serial: "SN-1"} },
		Key:  func() *ecdsa.PrivateKey { return key },
		Send: func(_ context.Context, to netip.Addr, with *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error) {
			if with != key || h.Serial != "SN-1" {
				t.Errorf("sent %+v", h)
			}
			r.sent <- to.String()
			answers, _ := r.answers.Get()
			if a, found := answers[to.String()]; found {
				return a, nil
			}
			return inventory.Answer{}, fmt.Errorf("machine %s: no route", to)
		},
		Adopt: func(_ context.Context, from netip.Addr, a inventory.Answer) error { return r.adopt(from, a) },
		Event: func(kind, message string) { r.events <- kind + ": " + message },
		Tick:  func(time.Duration) (<-chan time.Time, func()) { return r.tick, func() {} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); reporter.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return r
}

// next returns the next value of a channel. It fails the test if there is none within 20 seconds.
func next(t *testing.T, c chan string) string {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("the channel has no value after 20 seconds")
		return ""
	}
}

func addresses(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// TestReporter checks to which addresses a machine sends its inventory, and the events about the
// answers. A machine that has a configuration sends no inventory.
func TestReporter(t *testing.T) {
	r := newReporterTest(t)
	r.names["orlop-inventory.example.com."] = addresses("10.0.0.11", "10.0.0.12", "10.0.0.11", "127.0.0.1", "fe80::1", "::ffff:10.0.0.13")
	r.answers.Set(map[string]inventory.Answer{"10.0.0.11": {Reason: "no"}, "10.0.0.12": {Listed: true}})
	r.domains.Set([]string{"other.example.com", "example.com."})
	for _, want := range []string{"10.0.0.11", "10.0.0.12", "10.0.0.13"} {
		if got := next(t, r.sent); got != want {
			t.Errorf("sent to %s, want %s", got, want)
		}
	}
	if got := next(t, r.events); got != "operation: a machine that calls itself a control plane lists this machine: 10.0.0.12" {
		t.Error(got)
	}
	// The next messages have the same result, so the reporter adds no second event.
	r.tick <- time.Time{}
	for range 3 {
		next(t, r.sent)
	}
	r.answers.Set(map[string]inventory.Answer{"10.0.0.13": {Reason: "\x1b[31m" + strings.Repeat("x", 300)}})
	r.tick <- time.Time{}
	if got := next(t, r.events); !strings.HasPrefix(got, "failure: no receiver of the inventory lists this machine: 10.0.0.13: ?[31mxxx") || len(got) > 250 {
		t.Errorf("%d characters: %s", len(got), got)
	}
	for range 3 {
		next(t, r.sent)
	}
	// A machine with a configuration does not wait, and sends no inventory. The reporter accepts
	// the second tick only after it has processed the first.
	r.waits.Set(false)
	r.tick <- time.Time{}
	r.tick <- time.Time{}
	select {
	case to := <-r.sent:
		t.Errorf("sent to %s", to)
	default:
	}
}

// TestAdopt checks that the machine rejects a bad configuration of the first receiver and adopts
// the valid configuration of the next receiver. It sends its inventory to no receiver after that
// one.
func TestAdopt(t *testing.T) {
	r := newReporterTest(t)
	r.adopt = func(from netip.Addr, a inventory.Answer) error {
		if string(a.Template.Documents) == "good" {
			r.sent <- "adopted from " + from.String()
			return nil
		}
		return errors.New("not signed\x1b")
	}
	offer := func(text string) inventory.Answer {
		return inventory.Answer{Listed: true, Template: &claim.Signed{Documents: []byte(text)}}
	}
	r.names["orlop-inventory.example.com."] = addresses("10.0.0.11", "10.0.0.12", "10.0.0.13")
	r.answers.Set(map[string]inventory.Answer{"10.0.0.11": offer("bad"), "10.0.0.12": {Listed: true}, "10.0.0.13": {Listed: true}})
	r.domains.Set([]string{"example.com."})
	if got := next(t, r.events); got != "failure: configuration from 10.0.0.11 refused: not signed?" {
		t.Error(got)
	}
	for range 3 {
		next(t, r.sent)
	}
	r.answers.Set(map[string]inventory.Answer{"10.0.0.11": offer("bad"), "10.0.0.12": offer("good")})
	r.tick <- time.Time{}
	for _, want := range []string{"10.0.0.11", "10.0.0.12", "adopted from 10.0.0.12"} {
		if got := next(t, r.sent); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	r.waits.Set(false)
	r.tick <- time.Time{}
	select {
	case got := <-r.sent:
		t.Errorf("after the adoption: %s", got)
	default:
	}
}

// TestNames checks the names that a machine looks up for its search domains: each name once, and at
// most four.
func TestNames(t *testing.T) {
	got := names([]string{"", ".", "a.example.com", "a.example.com.", "b", "c", "d", "e"})
	want := []string{"orlop-inventory.a.example.com.", "orlop-inventory.b.", "orlop-inventory.c.", "orlop-inventory.d."}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReceiversAreBounded checks that receivers returns at most maxReceivers addresses if a name
// has many.
func TestReceiversAreBounded(t *testing.T) {
	var all []netip.Addr
	for i := range 100 {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	r := NewReporter(ReporterDeps{Lookup: func(context.Context, string) ([]netip.Addr, error) { return all, nil }})
	if got := r.receivers(t.Context(), []string{"a.", "b."}); len(got) != maxReceivers {
		t.Errorf("%d receivers", len(got))
	}
}

// TestSlowLookup checks that the lookup of a name ends after sendTimeout without an answer, and
// that the next name is then looked up.
func TestSlowLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewReporter(ReporterDeps{Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			if name == "slow." {
				<-ctx.Done()
			}
			return addresses("10.0.0.11"), ctx.Err()
		}})
		began := time.Now()
		got := r.receivers(t.Context(), []string{"slow.", "a."})
		if took := time.Since(began); !slices.Equal(got, addresses("10.0.0.11")) || took != sendTimeout {
			t.Errorf("%v after %s", got, took)
		}
	})
}
