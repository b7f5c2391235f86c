// Package diskmatch compares disks with the disk selectors of a configuration: that of an
// installation, and those of volumes. It reads no disk, and leaves it to the caller which of the
// matching disks are suitable.
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

// Disk has the properties of a disk that a selector can name.
type Disk = nodespec.DiskMatchDisk

// Mismatches returns the parts of a selector that a disk does not match. matches is the result of
// the selector's expression for each disk, by path; nil without an expression.
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

// identity returns the parts about the model, the serial number and the WWID that a disk does not
// match.
func identity(s config.DiskSelector, d Disk) (reasons []string) {
	for _, p := range []struct{ name, pattern, value string }{{"model", s.Model, d.Model}, {"serial", s.Serial, d.Serial}, {"wwid", s.WWID, d.WWID}} {
		if p.pattern != "" && !glob.Match(p.pattern, p.value) {
			reasons = append(reasons, fmt.Sprintf("%s: %q does not match %q", p.name, p.value, p.pattern))
		}
	}
	return reasons
}

// IdentityMismatches returns the parts of a selector that a disk does not match and that stay the
// same for the life of a disk: the model, the serial number and the WWID. The path and the bus
// change when the disk is connected elsewhere.
func IdentityMismatches(s config.DiskSelector, d Disk) []string { return identity(s, d) }

// ExpressionError is an error in the expression of a disk selector.
type ExpressionError struct{ Reason string }

func (e *ExpressionError) Error() string { return "match: " + e.Reason }

// Problem returns the error with the position of the field in the documents.
func (e *ExpressionError) Problem(c *config.Config, field string) config.Problem {
	at := c.Origin(field)
	return config.Problem{File: at.File, Line: at.Line, Column: at.Column, Field: field, Reason: "the expression " + e.Reason}
}

// timeout bounds the evaluation of an expression by the orchestrator, which takes less than a
// second on real hardware.
const timeout = time.Minute

// Evaluate evaluates an expression for each disk; the result is by path. The orchestrator has the
// compiler; see docs/decisions/0016-disk-expressions.md.
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
