// Package diskmatch compares disks with a disk selector of a configuration, for an installation or
// for a volume. It reads no disk. The caller decides which of the matching disks are suitable.
package diskmatch

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/glob"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Disk has the properties of a disk that a selector can test.
type Disk = nodespec.DiskMatchDisk

// Mismatches returns a reason for each part of a selector that a disk does not match; nil if the
// disk matches. matches is the result of Evaluate for the expression of the selector; nil if the
// selector has no expression.
func Mismatches(s config.DiskSelector, d Disk, matches map[string]bool) []string {
	var reasons []string
	if least := int64(s.Size.Min); d.Size < least {
		reasons = append(reasons, fmt.Sprintf("size: it is not %s", s.Size))
	} else if most := int64(s.Size.Max); most != 0 && d.Size > most {
		reasons = append(reasons, fmt.Sprintf("size: it is not %s", s.Size))
	}
	reasons = append(reasons, identity(s, d)...)
	if s.Path != "" && !glob.Match(s.Path, d.Path) {
		reasons = append(reasons, fmt.Sprintf("path: %q does not match %q", d.Path, s.Path))
	}
	if s.Bus != "" && !glob.Match(s.Bus, d.Bus) && !glob.Match(s.Bus, d.Transport) {
		reasons = append(reasons, fmt.Sprintf("bus: neither %q nor %q matches %q", d.Transport, d.Bus, s.Bus))
	}
	if matches != nil && !matches[d.Path] {
		reasons = append(reasons, "match: the expression is false")
	}
	return reasons
}

// identity returns a reason for each mismatch of the model, the serial number or the WWID.
func identity(s config.DiskSelector, d Disk) (reasons []string) {
	for _, p := range []struct{ name, pattern, value string }{{"model", s.Model, d.Model}, {"serial", s.Serial, d.Serial}, {"wwid", s.WWID, d.WWID}} {
		if p.pattern != "" && !glob.Match(p.pattern, p.value) {
			reasons = append(reasons, fmt.Sprintf("%s: %q does not match %q", p.name, p.value, p.pattern))
		}
	}
	return reasons
}

// IdentityMismatches returns a reason for each mismatch of the model, the serial number or the
// WWID. These properties never change. The path and the bus of a disk can change when it is
// connected to another port.
func IdentityMismatches(s config.DiskSelector, d Disk) []string { return identity(s, d) }

// ExpressionError is the error of an invalid expression in a disk selector.
type ExpressionError struct{ Reason string }

func (e *ExpressionError) Error() string { return "match: " + e.Reason }

// Problem returns the error as a problem of a configuration, at the position of the field.
func (e *ExpressionError) Problem(c *config.Config, field string) config.Problem {
	at := c.Origin(field)
	return config.Problem{File: at.File, Line: at.Line, Column: at.Column, Field: field, Reason: "the expression " + e.Reason}
}

// timeout is the time limit for the evaluation of an expression. An evaluation takes less than a
// second on real hardware.
const timeout = time.Minute

// Evaluate evaluates an expression for each disk. The keys of the result are the paths of the disks
// for which the expression is true. It fails with an *ExpressionError for an invalid expression.
// The orchestrator evaluates it, because only the orchestrator contains the compiler
// (docs/decisions/0016-disk-expressions.md).
func Evaluate(ctx context.Context, run nodespec.Command, expression string, disks []Disk) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a, err := nodespec.Run[nodespec.DiskMatchResult](ctx, run, paths.UserAPI, "match-disks", nodespec.DiskMatchRequest{Expression: expression, Disks: disks})
	if err != nil {
		return nil, err
	}
	if a.Problem != "" {
		return nil, &ExpressionError{a.Problem}
	}
	matches := map[string]bool{}
	for _, path := range a.Matches {
		matches[path] = true
	}
	return matches, nil
}
