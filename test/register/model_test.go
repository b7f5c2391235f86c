package register

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// op returns an operation of register a. The times of its call and its answer are in seconds.
func op(k Kind, expected, value string, a Answer, called, answered int) Operation {
	return Operation{Register: "a", Kind: k, Expected: expected, Value: value, Answer: a, Called: time.Duration(called) * time.Second, Answered: time.Duration(answered) * time.Second}
}

// TestJudge checks the verdicts about linearizable and other histories.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []Operation
		want    Verdict
	}{
		{"a read returns the written value", []Operation{op(Write, "", "1", Done, 0, 1), op(Read, "", "1", Done, 2, 3)}, Linearizable},
		{"an acknowledged write is lost", []Operation{op(Write, "", "1", Done, 0, 1), op(Read, "", "", Done, 2, 3)}, NotLinearizable},
		{"reads during a write return the new value", []Operation{op(Write, "", "1", Done, 0, 9), op(Read, "", "1", Done, 2, 3), op(Read, "", "1", Done, 4, 5)}, Linearizable},
		{"a read returns the new value, and the next read the old value", []Operation{op(Write, "", "1", Done, 0, 9), op(Read, "", "1", Done, 2, 3), op(Read, "", "", Done, 4, 5)}, NotLinearizable},
		{"a write without an answer is never applied", []Operation{op(Write, "", "1", Unknown, 0, 1), op(Read, "", "", Done, 2, 3)}, Linearizable},
		{"a write without an answer is applied late", []Operation{op(Write, "", "1", Unknown, 0, 1), op(Read, "", "", Done, 2, 3), op(Read, "", "1", Done, 4, 5)}, Linearizable},
		{"a write without an answer is applied twice", []Operation{
			op(Write, "", "1", Unknown, 0, 1), op(Read, "", "1", Done, 2, 3), op(Write, "", "2", Done, 4, 5), op(Read, "", "1", Done, 6, 7),
		}, NotLinearizable},
		{"one of two concurrent swaps of the same value succeeds", []Operation{op(Swap, "", "1", Done, 0, 5), op(Swap, "", "2", Refused, 0, 5), op(Read, "", "1", Done, 6, 7)}, Linearizable},
		{"two concurrent swaps of the same value succeed", []Operation{op(Swap, "", "1", Done, 0, 5), op(Swap, "", "2", Done, 0, 5)}, NotLinearizable},
		{"a swap is refused although the register has the expected value", []Operation{op(Swap, "", "1", Refused, 0, 1)}, NotLinearizable},
		{"a swap without an answer is applied", []Operation{op(Swap, "", "1", Unknown, 0, 1), op(Read, "", "1", Done, 2, 3)}, Linearizable},
		{"a swap without an answer is applied although the register has another value than expected", []Operation{op(Swap, "9", "1", Unknown, 0, 1), op(Read, "", "1", Done, 2, 3)}, NotLinearizable},
		{"a read without an answer is ignored", []Operation{op(Read, "", "7", Unknown, 0, 1)}, Linearizable},
	} {
		if got, _ := Judge(c.history, time.Minute); got != c.want {
			t.Errorf("%s: the verdict is %s", c.name, got)
		}
	}
}

// TestJudgeFindsWhatIsLost checks that random histories of a correct register are linearizable, and
// that random histories of a register that loses one acknowledged write are not linearizable.
func TestJudgeFindsWhatIsLost(t *testing.T) {
	for seed := range uint64(50) {
		for _, forgets := range []bool{false, true} {
			history := simulate(rand.New(rand.NewPCG(seed, 1)), forgets)
			want := Linearizable
			if forgets {
				want = NotLinearizable
			}
			if got, _ := Judge(history, time.Minute); got != want {
				t.Errorf("seed %d, a write is lost: %v: the verdict is %s", seed, forgets, got)
			}
		}
	}
}

// simulate returns the history of a register. Operations of the history overlap. With forgets, the
// history ends with an acknowledged write that the last read does not see.
func simulate(dice *rand.Rand, forgets bool) []Operation {
	var history []Operation
	value, at, silent := "", 0, 0
	for n := range 40 {
		called := at + dice.IntN(3)
		o := op(Read, "", value, Done, called, called+1+dice.IntN(3))
		switch dice.IntN(4) {
		case 0:
			o.Kind, o.Value = Write, fmt.Sprint(n)
			value = o.Value
		case 1:
			o.Kind, o.Expected, o.Value = Swap, value, fmt.Sprint(n)
			value = o.Value
		case 2:
			// The register never applies these writes. Their number is limited, because the search
			// is exponential in the number of unanswered writes.
			if silent++; silent < 4 {
				o = op(Write, "", fmt.Sprint(n), Unknown, called, called+1)
			}
		}
		at = called + 1
		history = append(history, o)
	}
	at += 10
	if forgets {
		history = append(history, op(Write, "", "kept", Done, at, at+1), op(Write, "", "lost", Done, at+2, at+3), op(Read, "", "kept", Done, at+4, at+5))
	}
	return history
}
