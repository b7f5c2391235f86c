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
	// Swap sets a value if the register has not been written since this client read the expected
	// value.
	Swap Kind = "swap"
)

// Answer is the result of an operation.
type Answer string

// These are the answers.
const (
	Done    Answer = "done"
	Refused Answer = "refused" // another client has written; no effect
	// Unknown means that there was no answer. The operation may be performed at any time after its
	// call, or never.
	Unknown Answer = "unknown"
)

// Operation is one request of a client for one register, with its answer. Each write has a unique
// value, so a read value identifies the write.
type Operation struct {
	Client   int           `json:"client"`
	Register string        `json:"register"`
	Kind     Kind          `json:"kind"`
	Value    string        `json:"value,omitempty"`    // written or read value
	Expected string        `json:"expected,omitempty"` // the value that a swap expects
	Answer   Answer        `json:"answer"`
	Called   time.Duration `json:"called"` // since the start of the history
	Answered time.Duration `json:"answered"`
}

// model returns the model of a register that holds the last written value. A write without an
// answer may be ordered after all other operations, where no read sees its value.
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

// step reports whether an operation can have its answer if the register holds value. The second
// result is the value of the register after the operation.
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

// Verdict is the result of the check for linearizability.
type Verdict string

// The verdicts.
const (
	Linearizable    Verdict = "linearizable"
	NotLinearizable Verdict = "not linearizable"
	Undecided       Verdict = "undecided" // the check took too long
)

// Judge checks whether the history is linearizable, and returns a picture of the history. It omits
// reads without an answer, because they contain no information. After the time limit, the verdict
// is Undecided: the duration of the search for an order is exponential in the number of writes
// without an answer.
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

// Picture is a history with the order that the search found. Write draws it.
type Picture porcupine.LinearizationInfo

// Write stores the picture as a web page.
func (p Picture) Write(file string) error {
	if err := porcupine.VisualizePath(model(), porcupine.LinearizationInfo(p), file); err != nil {
		return fmt.Errorf("picture of the history: cannot write: %w", err)
	}
	return nil
}

// Silence returns the longest time between two answers, or between the start and the first answer.
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
