package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// kind is the kind of an operation.
type kind string

const (
	read kind = "read"
	// write sets a value unconditionally.
	write kind = "write"
	// swap sets a value if no other client has written since this client read the expected value.
	swap kind = "swap"
)

// answer is the end of an operation.
type answer string

const (
	done    answer = "done"
	refused answer = "refused" // another client has written meanwhile, so it was not done
	// unknown: there was no answer. The operation was done, will be done later, or never.
	unknown answer = "unknown"
)

// operation is one request of a client for one register, and its answer. Values are unique, so a
// value identifies its write.
type operation struct {
	Client   int           `json:"client"`
	Register string        `json:"register"`
	Kind     kind          `json:"kind"`
	Value    string        `json:"value,omitempty"`    // written or read value
	Expected string        `json:"expected,omitempty"` // of a swap
	Answer   answer        `json:"answer"`
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
				register := o.Input.(operation).Register
				byRegister[register] = append(byRegister[register], o)
			}
			var all [][]porcupine.Operation
			for _, part := range byRegister {
				all = append(all, part)
			}
			return all
		},
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) { return step(state.(string), input.(operation)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(operation)
			return fmt.Sprintf("%s %s %s→%s: %s", o.Kind, o.Register, o.Expected, o.Value, o.Answer)
		},
	}
}

// step reports whether an operation can have its answer when the register holds a value, and
// returns the next value.
func step(value string, o operation) (bool, any) {
	switch {
	case o.Kind == read:
		return o.Value == value, value
	case o.Kind == write && o.Answer == refused:
		return true, value
	case o.Kind == write:
		return true, o.Value
	case o.Answer == done:
		return value == o.Expected, o.Value
	case o.Answer == refused:
		return value != o.Expected, value
	case value == o.Expected: // a swap without an answer
		return true, o.Value
	}
	return true, value
}

// verdict is the result of the check.
type verdict string

const (
	linearizable    verdict = "linearizable"
	notLinearizable verdict = "not linearizable"
	undecided       verdict = "undecided" // the check took too long
)

// judge searches for an order. Reads without an answer have no information, and are left out. limit
// bounds the search, which is exponential in the number of writes without an answer.
func judge(history []operation, limit time.Duration) (verdict, porcupine.LinearizationInfo) {
	var operations []porcupine.Operation
	for _, o := range history {
		if o.Kind == read && o.Answer == unknown {
			continue
		}
		returned := int64(o.Answered)
		if o.Answer == unknown {
			returned = math.MaxInt64
		}
		operations = append(operations, porcupine.Operation{ClientId: o.Client, Input: o, Call: int64(o.Called), Return: returned})
	}
	result, info := porcupine.CheckOperationsVerbose(model(), operations, limit)
	return map[porcupine.CheckResult]verdict{porcupine.Ok: linearizable, porcupine.Illegal: notLinearizable, porcupine.Unknown: undecided}[result], info
}

// silence returns the longest time without a completed operation.
func silence(history []operation) time.Duration {
	var ends []time.Duration
	for _, o := range history {
		if o.Answer != unknown {
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
