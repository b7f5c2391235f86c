// Package targets compares measured figures with the values that the project asks for, in a table
// for all measuring programs. A target bounds a figure itself, or the ratio of our figure and the
// figure of another side of the same run.
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

// Target is the asked value of a figure.
type Target struct {
	// Figure is the name of the figure in the file of results.
	Figure string
	What   string // the figure in words
	Unit   string
	// Ratio bounds the ratio with the other side, and not the figure.
	Ratio bool
	// AtMost is the asked value.
	AtMost float64
	// Shown means that the figure is only shown, without an asked value.
	Shown bool
}

// Measured holds a figure of both sides. A missing value is nil.
type Measured struct {
	Ours, Other *float64 // medians
	// With is the other side: a version, or the baseline; empty without another side.
	With string
	// Ratio is the median of Pairs, the ratios of the pairs.
	Ratio *float64
	Pairs []float64
}

// Result is a target with the measured figures.
type Result struct {
	Figure string    `json:"figure"`
	Ours   *float64  `json:"ours,omitempty"`
	Other  *float64  `json:"other,omitempty"`
	With   string    `json:"with,omitempty"`
	Ratio  *float64  `json:"ratio,omitempty"`
	Pairs  []float64 `json:"pairs,omitempty"`
	// Asked is empty for a figure that is only shown.
	Asked string `json:"asked,omitempty"`
	// Met is absent if nothing is asked, or the value was not measured.
	Met  *bool `json:"met,omitempty"`
	what string
	unit string
}

// Result compares a measured figure with the target.
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

// Write writes the results as a table in Markdown, with the command that measured them.
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

// Store writes the table to out and to a file.
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

// trim formats a number without zeros at its end.
func trim(v float64) string { return fmt.Sprintf("%g", v) }

// Divide returns the ratio of two figures; nil if one is missing, or for a division by zero.
func Divide(ours, other *float64) *float64 {
	if ours == nil || other == nil || *other == 0 {
		return nil
	}
	q := *ours / *other
	return &q
}

// Median returns the median; nil without values.
func Median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	m := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return &m
}

// InTurn returns the sides in the order of a round, which counts from 1: every second round has the
// reverse order (A B, B A), so that a computer that becomes slower or faster favors no side.
func InTurn[T any](sides []T, round int) []T {
	order := slices.Clone(sides)
	if round%2 == 0 {
		slices.Reverse(order)
	}
	return order
}
