package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/vm"
)

// op returns an operation of register a, from one second to another.
func op(k kind, expected, value string, a answer, called, answered int) operation {
	return operation{Register: "a", Kind: k, Expected: expected, Value: value, Answer: a, Called: time.Duration(called) * time.Second, Answered: time.Duration(answered) * time.Second}
}

// TestJudge checks valid and invalid histories of a cluster.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []operation
		want    verdict
	}{
		{"what is written is read", []operation{op(write, "", "1", done, 0, 1), op(read, "", "1", done, 2, 3)}, linearizable},
		{"an acknowledged write is lost", []operation{op(write, "", "1", done, 0, 1), op(read, "", "", done, 2, 3)}, notLinearizable},
		{"a read beside a write sees it or not", []operation{op(write, "", "1", done, 0, 9), op(read, "", "1", done, 2, 3), op(read, "", "1", done, 4, 5)}, linearizable},
		{"a write is seen, and then no more", []operation{op(write, "", "1", done, 0, 9), op(read, "", "1", done, 2, 3), op(read, "", "", done, 4, 5)}, notLinearizable},
		{"a write without an answer is never done", []operation{op(write, "", "1", unknown, 0, 1), op(read, "", "", done, 2, 3)}, linearizable},
		{"it is done late", []operation{op(write, "", "1", unknown, 0, 1), op(read, "", "", done, 2, 3), op(read, "", "1", done, 4, 5)}, linearizable},
		{"it is done twice", []operation{
			op(write, "", "1", unknown, 0, 1), op(read, "", "1", done, 2, 3), op(write, "", "2", done, 4, 5), op(read, "", "1", done, 6, 7),
		}, notLinearizable},
		{"of two swaps of the same value one is done", []operation{op(swap, "", "1", done, 0, 5), op(swap, "", "2", refused, 0, 5), op(read, "", "1", done, 6, 7)}, linearizable},
		{"both are done", []operation{op(swap, "", "1", done, 0, 5), op(swap, "", "2", done, 0, 5)}, notLinearizable},
		{"a swap is refused without a reason", []operation{op(swap, "", "1", refused, 0, 1)}, notLinearizable},
		{"a swap without an answer was done", []operation{op(swap, "", "1", unknown, 0, 1), op(read, "", "1", done, 2, 3)}, linearizable},
		{"a swap without an answer of another value was not", []operation{op(swap, "9", "1", unknown, 0, 1), op(read, "", "1", done, 2, 3)}, notLinearizable},
		{"a read without an answer says nothing", []operation{op(read, "", "7", unknown, 0, 1)}, linearizable},
	} {
		if got, _ := judge(c.history, time.Minute); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// TestJudgeFindsWhatIsLost simulates clients of a register that loses one write per history, and of
// a register that does not.
func TestJudgeFindsWhatIsLost(t *testing.T) {
	for seed := range uint64(50) {
		for _, forgets := range []bool{false, true} {
			history := simulate(rand.New(rand.NewPCG(seed, 1)), forgets)
			want := linearizable
			if forgets {
				want = notLinearizable
			}
			if got, _ := judge(history, time.Minute); got != want {
				t.Errorf("seed %d, forgets %v: %s", seed, forgets, got)
			}
		}
	}
}

// simulate returns the history of a register with three concurrent clients. If it forgets, an
// acknowledged write is undone.
func simulate(dice *rand.Rand, forgets bool) []operation {
	var history []operation
	value, at, silent := "", 0, 0
	for n := range 40 {
		called := at + dice.IntN(3)
		o := op(read, "", value, done, called, called+1+dice.IntN(3))
		switch dice.IntN(4) {
		case 0:
			o.Kind, o.Value = write, fmt.Sprint(n)
			value = o.Value
		case 1:
			o.Kind, o.Expected, o.Value = swap, value, fmt.Sprint(n)
			value = o.Value
		case 2:
			if silent++; silent < 4 { // the search is exponential in their number
				o = op(write, "", fmt.Sprint(n), unknown, called, called+1) // never applied
			}
		}
		at = called + 1
		history = append(history, o)
	}
	at += 10
	if forgets {
		history = append(history, op(write, "", "kept", done, at, at+1), op(write, "", "lost", done, at+2, at+3), op(read, "", "kept", done, at+4, at+5))
	}
	return history
}

// switches records the actions on machines.
type switches []string

func (s *switches) Act(_ context.Context, machine string, action vm.Action) error {
	*s = append(*s, machine+" "+string(action))
	return nil
}

func (s *switches) SetFaults(_ context.Context, machine string, f vm.Faults) error {
	*s = append(*s, fmt.Sprintf("%s down %v", machine, f.Down))
	return nil
}

// TestFaults checks that each fault is undone, also after a cancellation.
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
			t.Errorf("%s: %q, %v, want %q", f, s, err, want)
		}
	}
	drawn := map[string]int{}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		f := draw(dice, machines)
		drawn[f.What]++
		if f.Lasts < shortest || f.Lasts > longest || f.What != blackout && len(f.Machines) != 1 {
			t.Fatalf("%+v", f)
		}
	}
	for _, what := range []string{cut, blackout, isolate, freeze} {
		if drawn[what] < 50 {
			t.Errorf("%s: drawn %d times in 1000", what, drawn[what])
		}
	}
}

func TestReport(t *testing.T) {
	var r report
	r.count([]operation{op(write, "", "1", done, 0, 1), op(swap, "", "2", refused, 1, 4), op(write, "", "3", unknown, 4, 14), op(read, "", "1", done, 14, 15)})
	if r.Operations != 4 || r.Done != 2 || r.Refused != 1 || r.Unknown != 1 || r.SilenceS != 11 {
		t.Errorf("%+v", r)
	}
}
