package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	File   string `json:"-"`                // as given to Parse; "-" when that was empty
	Line   int    `json:"line,omitempty"`   // from 1; 0 when unknown
	Column int    `json:"column,omitempty"` // from 1, in characters; 0 when unknown
	// path, such as "Network.spec.links[0].mtu"; empty when the file as a whole is meant
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"` // what is wrong, without repeating the field

	Expected string `json:"expected,omitempty"` // what would be right; may be empty
	// the known name or the value that was probably meant; may be empty
	Nearest string `json:"nearest,omitempty"`
	Hint    string `json:"hint,omitempty"` // what to do; may be empty
}

// String is the problem in one line: file:line:col: Field: reason; expected …; did you mean "x"?;
// hint.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	b.WriteString(": ")
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Reason)
	if p.Expected != "" {
		b.WriteString("; expected " + p.Expected)
	}
	if p.Nearest != "" {
		fmt.Fprintf(&b, "; did you mean %q?", p.Nearest)
	}
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Problems are all the things that are wrong with a configuration, in the order of the file. A nil
// value means that nothing is wrong; use Err to get an error that is nil then.
type Problems []Problem

// Error is one line per problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Err is p as an error, or nil when there is no problem.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// maxProblems bounds the answer to a file of garbage.
const maxProblems = 100

// sorted puts the problems into the order of the file, without repetitions, and bounds their
// number.
func (p Problems) sorted() Problems {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Expected, b.Expected), cmp.Compare(a.Hint, b.Hint),
		)
	})
	p = slices.Compact(p)
	if len(p) > maxProblems {
		rest := Problem{File: p[0].File, Reason: fmt.Sprintf("%d more problems", len(p)-maxProblems), Hint: "correct the first ones, then look again"}
		p = append(slices.Clip(p[:maxProblems]), rest)
	}
	return p
}

// wrong is what a type's UnmarshalText returns: a Problem without its place. It never holds a
// secret.
type wrong struct{ reason, expected, nearest, hint string }

func (w *wrong) Error() string {
	return Problem{File: "value", Reason: w.reason, Expected: w.expected, Nearest: w.nearest, Hint: w.hint}.String()
}
