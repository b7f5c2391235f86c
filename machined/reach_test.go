package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestReaching goes through the life of configurations with a clock of its own: after each observation the act that is due and how long the
// machine rests then.
func TestReaching(t *testing.T) {
	a, b := &config.Config{}, &config.Config{}
	never := func(c *config.Config) reachInput { return reachInput{config: c, decided: true, comeback: true} }
	with := func(in reachInput, change func(*reachInput)) reachInput { change(&in); return in }
	address := func(in *reachInput) { in.address = true }
	type at struct {
		minutes float64
		in      reachInput
		act     reachAct
		rest    time.Duration
	}
	for name, life := range map[string][]at{
		"none is there": {{0, reachInput{decided: true}, reachRest, 0}},
		"an address at once": {
			{0, with(never(a), address), reachRecord, 0},
			{1, with(never(a), func(in *reachInput) { in.had = true }), reachRest, 0},
		},
		"a cable is pulled later, and a start without one": {
			{0, with(never(a), func(in *reachInput) { in.had = true }), reachRest, 0},
			{60, with(never(a), func(in *reachInput) { in.had = true }), reachRest, 0},
		},
		"never one": {
			{0, never(a), reachRest, 10 * time.Minute},
			{9.5, never(a), reachRest, 30 * time.Second},
			{10, never(a), reachReturn, time.Minute},
			{10.5, never(a), reachRest, 30 * time.Second},
			{11, never(a), reachReturn, time.Minute}, // the first return failed
			{12, with(never(b), func(in *reachInput) { in.had = true }), reachRest, 0},
		},
		"one just in time": {
			{0, never(a), reachRest, 10 * time.Minute},
			{9.9, with(never(a), address), reachRecord, 0},
		},
		"another configuration begins anew": {
			{0, never(a), reachRest, 10 * time.Minute},
			{9, never(b), reachRest, 10 * time.Minute},
			{18, never(b), reachRest, time.Minute},
			{19, never(b), reachReturn, time.Minute},
		},
		"on trial the time does not run, and nothing is recorded": {
			{0, with(never(a), func(in *reachInput) { in.decided = false }), reachRest, 0},
			{0.5, with(never(a), func(in *reachInput) { in.decided, in.address = false, true }), reachRest, 0},
			{30, never(a), reachRest, 10 * time.Minute},
			{40, never(a), reachReturn, time.Minute},
		},
		"nothing to return to": {
			{0, with(never(a), func(in *reachInput) { in.comeback = false }), reachRest, 0},
			{60, with(never(a), func(in *reachInput) { in.comeback = false }), reachRest, 0},
			{61, with(never(a), address), reachRecord, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r reaching
			begin := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
			for _, o := range life {
				o.in.now = begin.Add(time.Duration(o.minutes * float64(time.Minute)))
				var act reachAct
				var rest time.Duration
				if r, act, rest = r.step(o.in); act != o.act || rest != o.rest {
					t.Errorf("after %v min: act %d, rest %v; want %d, %v", o.minutes, act, rest, o.act, o.rest)
				}
			}
		})
	}
}

// TestAddressed: an address counts when others can use it.
func TestAddressed(t *testing.T) {
	given := func(prefix, unfit string) []network.AddressState {
		return []network.AddressState{{Prefix: netip.MustParsePrefix(prefix), Unfit: unfit}}
	}
	for _, c := range []struct {
		link network.LinkState
		want bool
	}{
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, true},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("fd00::5/64", "")}, true},
		{network.LinkState{Managed: true, Up: true, Carrier: true}, false},
		{network.LinkState{Managed: true, Up: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Managed: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("fe80::5/64", "")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("10.0.0.5/24", "duplicate")}, false},
		{network.LinkState{Managed: true, Up: true, Carrier: true, Addresses: given("127.0.0.1/8", "")}, false},
	} {
		if got := addressed(network.State{Links: []network.LinkState{{}, c.link}}); got != c.want {
			t.Errorf("%+v: %v", c.link, got)
		}
	}
}

// TestWithoutAddress: without an address the door and containerd go on, and nothing that would fail again and again.
func TestWithoutAddress(t *testing.T) {
	var names []string
	for _, s := range resting(append(kubernetes(true), door())) {
		names = append(names, s.Name)
	}
	if got := fmt.Sprint(names); got != "[containerd apid]" {
		t.Errorf("%s go on", got)
	}
}
