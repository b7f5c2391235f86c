// Package targets compares measured figures with their targets, and writes the table of the results
// for all measuring programs. A target is an upper limit for our figure, or for the ratio of our
// figure to the figure of another side in the same run. The other side is a former release or the
// baseline.
package targets

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// Target is the upper limit for a figure or for its ratio.
type Target struct {
	// Figure is the name of the figure in the file of results.
	Figure string
	What   string // the figure in words
	Unit   string
	// Ratio means that AtMost limits the ratio to the other side, and not the figure.
	Ratio bool
	// AtMost is the largest value that meets the target.
	AtMost float64
	// Shown means that the figure has no target and is only shown.
	Shown bool
}

// Measured holds the measured values of a figure for both sides. A missing value is nil.
type Measured struct {
	Ours, Other *float64 // medians
	// With names the other side: a version or the baseline. It is empty if there is no other side.
	With string
	// Pairs are the ratios of the single pairs of runs. Ratio is the median of Pairs.
	Ratio *float64
	Pairs []float64
}

// Result is a target with the measured values.
type Result struct {
	Figure string    `json:"figure"`
	Ours   *float64  `json:"ours,omitempty"`
	Other  *float64  `json:"other,omitempty"`
	With   string    `json:"with,omitempty"`
	Ratio  *float64  `json:"ratio,omitempty"`
	Pairs  []float64 `json:"pairs,omitempty"`
	// Asked is the target as text. It is empty for a figure that is only shown.
	Asked string `json:"asked,omitempty"`
	// Met is nil if the figure has no target or if the value was not measured.
	Met  *bool `json:"met,omitempty"`
	what string
	unit string
}

// Result returns the result of the target for the measured values.
func (t Target) Result(m Measured) Result {
	r := Result{Figure: t.Figure, Ours: m.Ours, Other: m.Other, With: m.With, Ratio: m.Ratio, Pairs: m.Pairs, what: t.What, unit: t.Unit}
	if t.Shown {
		return r
	}
	value := m.Ours
	r.Asked = "≤ " + trim(t.AtMost)
	if t.Ratio {
		value = m.Ratio
		r.Asked += " ×"
	} else if t.Unit != "" {
		r.Asked += " " + t.Unit
	}
	if value != nil {
		met := *value <= t.AtMost
		r.Met = &met
	}
	return r
}

// Write writes the results as a Markdown table, below the command that measured them. It writes
// nothing if there are no results.
func Write(out io.Writer, command string, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "`%s`\n\n| figure | ours | other side | ratio (pairs) | asked | met |\n|---|---|---|---|---|---|\n", command)
	for _, r := range results {
		other := "-"
		if r.Other != nil {
			other = value(r.Other, r.unit) + ", " + r.With
		}
		fmt.Fprintf(&text, "| %s (`%s`) | %s | %s | %s | %s | %s |\n", r.what, r.Figure, value(r.Ours, r.unit), other, r.ratio(), cmp.Or(r.Asked, "-"), r.met())
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// Store writes the table of Write to out and to a file.
func Store(out io.Writer, file, command string, results []Result) error {
	var text bytes.Buffer
	if err := Write(io.MultiWriter(out, &text), command, results); err != nil {
		return err
	}
	if err := renameio.WriteFile(file, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("targets: cannot write: %w", err)
	}
	return nil
}

func (r Result) ratio() string {
	if r.Ratio == nil {
		return "-"
	}
	text := fmt.Sprintf("%.2f", *r.Ratio)
	var pairs []string
	for _, p := range r.Pairs {
		pairs = append(pairs, fmt.Sprintf("%.2f", p))
	}
	if len(pairs) > 0 {
		text += " (" + strings.Join(pairs, ", ") + ")"
	}
	return text
}

func (r Result) met() string {
	switch {
	case r.Asked == "":
		return "-"
	case r.Met == nil:
		return "not measured"
	case *r.Met:
		return "yes"
	}
	return "**no**"
}

func value(v *float64, unit string) string {
	if v == nil {
		return "-"
	}
	return strings.TrimSpace(fmt.Sprintf("%.1f %s", *v, unit))
}

// trim formats a number without trailing zeros.
func trim(v float64) string { return fmt.Sprintf("%g", v) }

// Divide returns ours divided by other. It returns nil if a figure is missing or if other is 0.
func Divide(ours, other *float64) *float64 {
	if ours == nil || other == nil || *other == 0 {
		return nil
	}
	q := *ours / *other
	return &q
}

// Median returns the median of the values. It returns nil if there are no values.
func Median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	m := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return &m
}

// InTurn returns the sides in the order of a round. The first round has the number 1. Every second
// round has the reverse order (A B, B A). So a computer that becomes slower or faster during the
// run favors no side.
func InTurn[T any](sides []T, round int) []T {
	order := slices.Clone(sides)
	if round%2 == 0 {
		slices.Reverse(order)
	}
	return order
}
