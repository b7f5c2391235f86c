package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/register"
	"github.com/orlop-os/orlop/vm"
)

// switches records the actions on machines, as a fake of power.
type switches []string

func (s *switches) Act(_ context.Context, machine string, action vm.Action) error {
	*s = append(*s, machine+" "+string(action))
	return nil
}

func (s *switches) SetFaults(_ context.Context, machine string, f vm.Faults) error {
	*s = append(*s, fmt.Sprintf("%s down %v", machine, f.Down))
	return nil
}

// TestFaults checks that each fault is undone, even if the context has ended, and that all kinds of
// faults are drawn.
func TestFaults(t *testing.T) {
	machines := []string{"a", "b"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for f, want := range map[string][]string{
		cut: {"a power-cut", "a power-on"}, isolate: {"a down true", "a down false"}, freeze: {"a pause", "a resume"},
		blackout: {"a power-cut", "b power-cut", "b power-on", "a power-on"},
	} {
		hit := machines[:1]
		if f == blackout {
			hit = machines
		}
		var s switches
		if err := (fault{What: f, Machines: hit, Lasts: time.Hour}).inflict(ended, &s, vm.Clock{}); err != nil || !slices.Equal(s, want) {
			t.Errorf("%s: the actions on the machines are %q, %v, want %q", f, s, err, want)
		}
	}
	drawn := map[string]int{}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		f := draw(dice, machines)
		drawn[f.What]++
		if f.Lasts < shortest || f.Lasts > longest || f.What != blackout && len(f.Machines) != 1 {
			t.Fatalf("the drawn fault has a wrong duration or a wrong number of machines: %+v", f)
		}
	}
	for _, what := range []string{cut, blackout, isolate, freeze} {
		if drawn[what] < 50 {
			t.Errorf("%s: drawn %d times in 1000, want at least 50", what, drawn[what])
		}
	}
}

// TestReport checks the counts of the answers, and the longest time without an answer. An operation
// with the answer Unknown got no answer.
func TestReport(t *testing.T) {
	answered := func(at int, a register.Answer) register.Operation {
		return register.Operation{Answer: a, Answered: time.Duration(at) * time.Second}
	}
	var r report
	r.count([]register.Operation{answered(1, register.Done), answered(4, register.Refused), answered(14, register.Unknown), answered(15, register.Done)})
	if r.Operations != 4 || r.Done != 2 || r.Refused != 1 || r.Unknown != 1 || r.SilenceS != 11 {
		t.Errorf("the counts or the longest time without an answer are wrong: %+v", r)
	}
}
