// Package flags limits the numbers and durations that flags of commands accept. The machine checks
// the values of a request; a limit here rejects a value that the request cannot express, for
// example zero if zero stands for the default.
package flags

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// number is a type of a flag; it includes time.Duration.
type number interface {
	~int | ~int64 | ~uint32 | ~uint64
}

// limited is a flag's value with limits.
type limited[T number] struct {
	pflag.Value
	to        *T
	low, high T // high 0: no upper limit
}

// Positive rejects zero and negative values for a flag of a set. to is the variable of the flag.
func Positive[T number](set *pflag.FlagSet, name string, to *T) { Limit(set, name, to, 1, 0) }

// NotNegative rejects negative values for a flag of a set. to is the variable of the flag.
func NotNegative[T number](set *pflag.FlagSet, name string, to *T) { Limit(set, name, to, 0, 0) }

// Limit rejects values for a flag of a set that are less than low or, unless high is 0, greater
// than high. to is the variable of the flag. The default of the flag is not limited.
func Limit[T number](set *pflag.FlagSet, name string, to *T, low, high T) {
	flag := set.Lookup(name)
	flag.Value = &limited[T]{Value: flag.Value, to: to, low: low, high: high}
	if *to == 0 {
		flag.DefValue = "0" // the help does not show this default, whatever its type
	}
}

// Set implements pflag.Value.
func (l *limited[T]) Set(text string) error {
	before := *l.to
	err := l.Value.Set(text)
	if value := *l.to; err == nil && (value < l.low || l.high != 0 && value > l.high) {
		err = fmt.Errorf("expected %s", l.expected())
	}
	if err != nil {
		*l.to = before
	}
	return err
}

// expected describes the accepted values.
func (l *limited[T]) expected() string {
	_, duration := any(l.low).(time.Duration)
	switch {
	case l.high != 0:
		return fmt.Sprintf("%v to %v", l.low, l.high)
	case l.low > 0 && duration:
		return "a duration greater than 0"
	case duration:
		return "0s or a longer duration"
	}
	return fmt.Sprintf("%v or more", l.low)
}
