package upgrade

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/verity"
)

// The tests of this file check the defenses against attacks on upgrades. docs/updates.md lists the
// attacks.

// TestMaliciousSource checks that the next attempt asks a source last if its bundle could not be
// installed. A malicious source therefore cannot block an upgrade that another source offers.
func TestMaliciousSource(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	r := m.Receiver
	var asked []string
	r.deps.PeerEndpoint = func(address string) (client.Endpoint, error) {
		asked = append(asked, address)
		return client.Endpoint{}, errors.New(address + " does not answer")
	}
	r.deps.Node.Config = func() *config.Config { asked = append(asked, registrySource); return nil }
	r.deps.Node.Egress = func() egress.Config { return egress.Config{} }
	to := Release{Version: "3.0.0", Peers: []string{"10.0.0.8", "10.0.0.9"}, Image: "registry.example.com/orlop@sha256:" + strings.Repeat("0", 64)}
	for _, c := range []struct {
		failed string // source of the last failed upgrade; empty: a client uploaded the bundle
		want   []string
	}{
		{"", []string{"10.0.0.8", "10.0.0.9", registrySource}},
		{"10.0.0.8", []string{"10.0.0.9", registrySource, "10.0.0.8"}},
		{"10.0.0.9", []string{registrySource, "10.0.0.8", "10.0.0.9"}},
		{registrySource, []string{"10.0.0.8", "10.0.0.9", registrySource}},
		{"10.0.0.8", []string{"10.0.0.9", registrySource, "10.0.0.8"}},
	} {
		q := r.ask(false, "machine object")
		q.source = c.failed
		r.abort(false, Refusal{bundle.ErrDamaged}, q)
		asked = nil
		if _, _, err := r.findRelease(t.Context(), to); err == nil || !slices.Equal(asked, c.want) {
			t.Errorf("after a failure of %q: the order is %q, want %q; %v", c.failed, asked, c.want, err)
		}
	}
}

// TestUselessSource checks that the next attempt asks a peer last if it did not answer before the
// deadline, or described a bundle that no machine accepts.
func TestUselessSource(t *testing.T) {
	for name, fail := range map[string]func(r *Receiver, to Release){
		"no answer": func(r *Receiver, to Release) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var asked []string
			r.deps.PeerEndpoint = func(address string) (client.Endpoint, error) {
				cancel() // as at the deadline
				asked = append(asked, address)
				return client.Endpoint{}, ctx.Err()
			}
			if _, _, err := r.findRelease(ctx, to); !errors.Is(err, context.Canceled) || !slices.Equal(asked, to.Peers[:1]) {
				t.Errorf("the called peers are %q, %v", asked, err)
			}
		},
		"a wrong description": func(r *Receiver, to Release) {
			q := r.ask(false, "machine object")
			q.source = to.Peers[0]
			f := &peer{bundle: &api.DescribeBundleResponse{Version: to.Version, Sha256: "../", Size: 1}}
			if err := r.start(t.Context(), Installer{}, f, q); err == nil || !strings.Contains(err.Error(), "upgrade refused") {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestMachine(t, slot.Record{}).Receiver
			to := Release{Version: "3.0.0", Peers: []string{"10.0.0.8", "10.0.0.9"}}
			fail(r, to)
			if got := r.sources.inOrder(to.Peers); !slices.Equal(got, []string{"10.0.0.9", "10.0.0.8"}) {
				t.Errorf("the order of the next attempt is %q", got)
			}
		})
	}
}

// TestFastForward checks that neither a failed upgrade nor a version on trial raises the epoch
// floor, even if the version has the highest possible epoch. Otherwise the machine could install no
// later release.
func TestFastForward(t *testing.T) {
	for name, events := range map[string][]slot.Event{
		"not written": {slot.Started{To: "99.0.0", Epoch: bundle.MaxEpoch}, slot.WriteFailed{Reason: "no trusted key has signed it"}},
		"written":     {slot.Started{To: "99.0.0", Epoch: bundle.MaxEpoch}, slot.EntryWritten{}},
		"rolled back": {slot.Started{To: "3.0.0", Epoch: bundle.MaxEpoch}, slot.EntryWritten{}, slot.Booted{Entries: []slot.Entry{failed}}},
	} {
		m := newTestMachine(t, slot.Record{})
		for _, e := range events {
			if err := m.Controller.handle(t.Context(), e); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if floor, err := m.records.EpochFloor(); err != nil || floor != 0 {
			t.Errorf("%s: the floor is %d, %v", name, floor, err)
		}
		if name == "written" {
			continue
		}
		next := slot.Started{To: "2.0.1", Epoch: 7, Floor: m.Controller.EpochFloor()}
		if err := m.Controller.handle(t.Context(), next); err != nil {
			t.Errorf("%s: the next release is refused: %v", name, err)
		}
	}
}

// TestWrongSoftware checks that a signed version for another machine is rejected at the head of its
// bundle, before the rest is received.
func TestWrongSoftware(t *testing.T) {
	m := newTestMachine(t, slot.Record{})
	in := m.Receiver.deps.Files.Inbox
	trust := receivedBundleWith(t, in, bootImageOf(t, "ID=orlop\n"), strings.Repeat("ab", verity.HashSize)+",1,1,")
	content, err := os.ReadFile(in.file())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		i    Installer
		want string
	}{
		{Installer{Profile: "metal"}, "the bundle is for profile test, this machine runs metal"},
		{Installer{Profile: "test", Only: "2.9.0"}, "contains version 3.0.0, and version 2.9.0 is wanted"},
		{Installer{Profile: "test", Slot: Slot{Label: "ROOT-B", Size: 10}}, "slot ROOT-B only 0 MiB"},
	} {
		c.i.Trust, c.i.CheckExtensions = trust, func(string) error { return nil }
		if _, err := c.i.Check(bytes.NewReader(content)); !errors.As(err, new(Refusal)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Check returns %v, want %q", err, c.want)
		}
	}
}
