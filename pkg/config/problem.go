package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is an error in a configuration.
type Problem struct {
	File   string `json:"-"`                // file name as passed to Parse; "-" if it was empty
	Line   int    `json:"line,omitempty"`   // from 1; 0 if unknown
	Column int    `json:"column,omitempty"` // from 1, in characters; 0 if unknown
	// path, for example "Network.spec.links[0].mtu"; empty for the whole file
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"` // the error, without the field

	Expected string `json:"expected,omitempty"` // the expected value; may be empty
	// the probable name or value; may be empty
	Nearest string `json:"nearest,omitempty"`
	Hint    string `json:"hint,omitempty"` // how to fix the problem; may be empty
}

// String returns the problem on one line: file:line:col: Field: reason; expected …; did you mean
// "x"?; hint.
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
	if remedy := p.Remedy(); remedy != "" {
		b.WriteString("; " + remedy)
	}
	return b.String()
}

// Remedy returns the probable value as a question, and the hint; it may be empty.
func (p Problem) Remedy() string {
	switch {
	case p.Nearest == "":
		return p.Hint
	case p.Hint == "":
		return fmt.Sprintf("did you mean %q?", p.Nearest)
	default:
		return fmt.Sprintf("did you mean %q?; %s", p.Nearest, p.Hint)
	}
}

// Refused is the beginning of the message for every rejected configuration.
const Refused = "configuration refused, nothing was changed:"

// Problems are all errors in a configuration, in the order of the file; nil for a valid
// configuration. To return Problems as an error, use Err: a nil Problems in an error would not be
// nil.
type Problems []Problem

// Error returns one line per problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Err returns p as an error, or nil without problems.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// maxProblems limits the number of problems, for files that contain no configuration at all.
const maxProblems = 100

// sorted sorts the problems in the order of the file, removes duplicates, and limits their number.
func (p Problems) sorted() Problems {
	slices.SortFunc(p, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Expected, b.Expected), cmp.Compare(a.Hint, b.Hint),
		)
	})
	p = slices.Compact(p)
	if len(p) > maxProblems {
		rest := Problem{File: p[0].File, Reason: fmt.Sprintf("%d more problems", len(p)-maxProblems), Hint: "fix the first problems and validate again"}
		p = append(slices.Clip(p[:maxProblems]), rest)
	}
	return p
}

// wrong is a Problem without position and field. The UnmarshalText of the types in this package
// returns it as an error. It never contains a secret.
type wrong struct{ reason, expected, nearest, hint string }

func (w *wrong) Error() string {
	return Problem{File: "value", Reason: w.reason, Expected: w.expected, Nearest: w.nearest, Hint: w.hint}.String()
}
