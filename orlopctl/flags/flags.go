// Package flags limits the numbers and durations that flags of commands accept. The machine checks
// the values of requests. A limit in this package is for a value that a request cannot express: for
// example zero, if zero means the default in the request.
package flags

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// number is the type of a limited flag. It includes time.Duration.
type number interface {
	~int | ~int64 | ~uint32 | ~uint64
}

// limited is the value of a flag, with limits.
type limited[T number] struct {
	pflag.Value
	to        *T
	low, high T // no upper limit if high is 0
}

// Positive makes a flag reject zero and negative values. to is the variable of the flag.
func Positive[T number](set *pflag.FlagSet, name string, to *T) { Limit(set, name, to, 1, 0) }

// NotNegative makes a flag reject negative values. to is the variable of the flag.
func NotNegative[T number](set *pflag.FlagSet, name string, to *T) { Limit(set, name, to, 0, 0) }

// Limit makes a flag reject values that are less than low or greater than high. If high is 0, there
// is no upper limit. to is the variable of the flag. Limit does not check the default of the flag.
func Limit[T number](set *pflag.FlagSet, name string, to *T, low, high T) {
	flag := set.Lookup(name)
	flag.Value = &limited[T]{Value: flag.Value, to: to, low: low, high: high}
	if *to == 0 {
		flag.DefValue = "0" // pflag omits "0" from the help for every type
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
