package install

import (
	"context"
	"errors"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// expressionError is an error in the expression of a disk selector.
type expressionError struct{ reason string }

func (e *expressionError) Error() string { return config.MatchField + ": " + e.reason }

// problem returns the error with its position in the documents.
func (e *expressionError) problem(c *config.Config) config.Problems {
	at := c.Origin(config.MatchField)
	return config.Problems{{File: at.File, Line: at.Line, Column: at.Column, Field: config.MatchField, Reason: "the expression " + e.reason}}
}

// CheckMatch rejects a configuration with an expression of the disk selector that cannot be
// evaluated.
func (m *Manager) CheckMatch(ctx context.Context, c *config.Config) error {
	if c.Machine.Spec.Install == nil || c.Machine.Spec.Install.Disk.Match == "" {
		return nil
	}
	_, err := matchDisks(ctx, m.deps.Command, c.Machine.Spec.Install.Disk.Match, nil)
	if e := (*expressionError)(nil); errors.As(err, &e) {
		return e.problem(c)
	}
	return err
}

// matchTimeout bounds the evaluation of an expression by the orchestrator, which takes less than a
// second on real hardware.
const matchTimeout = time.Minute

// matchDisks evaluates an expression for each disk; the result is by path. The orchestrator has the
// compiler; see docs/decisions/0016-disk-expressions.md.
func matchDisks(ctx context.Context, run nodespec.Command, expression string, disks []Disk) (map[string]bool, error) {
	q := nodespec.DiskMatchRequest{Expression: expression}
	for _, d := range disks {
		q.Disks = append(q.Disks, nodespec.DiskMatchDisk{
			Path: d.Path, Size: int64(d.Size), SectorSize: int64(d.SectorSize), Model: d.Model, Serial: d.Serial, WWID: d.WWID, Bus: d.Bus,
			Transport: d.Transport, Rotational: d.Rotational, ReadOnly: d.ReadOnly,
		})
	}
	ctx, cancel := context.WithTimeout(ctx, matchTimeout)
	defer cancel()
	a, err := nodespec.Run[nodespec.DiskMatchResult](ctx, run, paths.UserAPI, "match-disks", q)
	if err != nil {
		return nil, err
	}
	if a.Problem != "" {
		return nil, &expressionError{a.Problem}
	}
	matches := map[string]bool{}
	for _, path := range a.Matches {
		matches[path] = true
	}
	return matches, nil
}
