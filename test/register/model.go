package register

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind is the kind of an operation.
type Kind string

// The kinds of operations.
const (
	Read Kind = "read"
	// Write sets a value unconditionally.
	Write Kind = "write"
	// Swap sets a value if no other client has written since this client read the expected value.
	Swap Kind = "swap"
)

// Answer is the end of an operation.
type Answer string

// The answers.
const (
	Done    Answer = "done"
	Refused Answer = "refused" // another client has written meanwhile, so it was not done
	// Unknown: there was no answer. The operation was done, will be done later, or never.
	Unknown Answer = "unknown"
)

// Operation is one request of a client for one register, and its answer. Values are unique, so a
// value identifies its write.
type Operation struct {
	Client   int           `json:"client"`
	Register string        `json:"register"`
	Kind     Kind          `json:"kind"`
	Value    string        `json:"value,omitempty"`    // written or read value
	Expected string        `json:"expected,omitempty"` // of a swap
	Answer   Answer        `json:"answer"`
	Called   time.Duration `json:"called"` // since the history started
	Answered time.Duration `json:"answered"`
}

// model is a register that holds its last value. A write without an answer may be ordered after all
// other operations, where no read sees it.
func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byRegister := map[string][]porcupine.Operation{}
			for _, o := range history {
				register := o.Input.(Operation).Register
				byRegister[register] = append(byRegister[register], o)
			}
			var all [][]porcupine.Operation
			for _, part := range byRegister {
				all = append(all, part)
			}
			return all
		},
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) { return step(state.(string), input.(Operation)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(Operation)
			return fmt.Sprintf("%s %s %s→%s: %s", o.Kind, o.Register, o.Expected, o.Value, o.Answer)
		},
	}
}

// step reports whether an operation can have its answer when the register holds a value, and
// returns the next value.
func step(value string, o Operation) (bool, any) {
	switch {
	case o.Kind == Read:
		return o.Value == value, value
	case o.Kind == Write && o.Answer == Refused:
		return true, value
	case o.Kind == Write:
		return true, o.Value
	case o.Answer == Done:
		return value == o.Expected, o.Value
	case o.Answer == Refused:
		return value != o.Expected, value
	case value == o.Expected: // a swap without an answer
		return true, o.Value
	}
	return true, value
}

// Verdict is the result of the check.
type Verdict string

// The verdicts.
const (
	Linearizable    Verdict = "linearizable"
	NotLinearizable Verdict = "not linearizable"
	Undecided       Verdict = "undecided" // the check took too long
)

// Judge searches for an order. Reads without an answer have no information, and are left out. limit
// bounds the search, which is exponential in the number of writes without an answer.
func Judge(history []Operation, limit time.Duration) (Verdict, Picture) {
	var operations []porcupine.Operation
	for _, o := range history {
		if o.Kind == Read && o.Answer == Unknown {
			continue
		}
		returned := int64(o.Answered)
		if o.Answer == Unknown {
			returned = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Called), Return: returned})
	}
	result, info := porcupine.CheckOperationsVerbose(model(), operations, limit)
	return map[porcupine.CheckResult]Verdict{porcupine.Ok: Linearizable, porcupine.Illegal: NotLinearizable, porcupine.Unknown: Undecided}[result], Picture(info)
}

// Picture is a history with the order that was found, to be drawn.
type Picture porcupine.LinearizationInfo

// Write stores the picture as a web page.
func (p Picture) Write(file string) error {
	if err := porcupine.VisualizePath(model(), porcupine.LinearizationInfo(p), file); err != nil {
		return fmt.Errorf("picture of the history: cannot write: %w", err)
	}
	return nil
}

// Silence returns the longest time without a completed operation.
func Silence(history []Operation) time.Duration {
	var ends []time.Duration
	for _, o := range history {
		if o.Answer != Unknown {
			ends = append(ends, o.Answered)
		}
	}
	slices.Sort(ends)
	var longest, last time.Duration
	for _, end := range ends {
		longest, last = max(longest, end-last), end
	}
	return longest
}
