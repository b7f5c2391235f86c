// Package diskselector evaluates a disk selector, a CEL expression over the disks of a machine; see
// package nodespec.
package diskselector

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// costLimit bounds an evaluation; a comparison costs 1 or 2.
const costLimit = 100_000

// Answer reads a DiskMatchRequest and writes the DiskMatchResult, both as JSON.
func Answer(from io.Reader, to io.Writer) error {
	q, err := nodespec.ReadRequest[nodespec.DiskMatchRequest](from)
	if err != nil {
		return err
	}
	var a nodespec.DiskMatchResult
	if a.Matches, err = match(q); err != nil {
		a.Problem = err.Error()
	}
	return nodespec.WriteAnswer(to, a)
}

// units are the constants for sizes in an expression.
var units = map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

// facts are the variables of an expression.
func facts(d nodespec.DiskMatchDisk) map[string]any {
	all := map[string]any{
		"disk.path": d.Path, "disk.size": d.Size, "disk.sectorSize": d.SectorSize, "disk.model": d.Model, "disk.serial": d.Serial,
		"disk.wwid": d.WWID, "disk.bus": d.Bus, "disk.transport": d.Transport, "disk.rotational": d.Rotational, "disk.readOnly": d.ReadOnly,
	}
	for unit, bytes := range units {
		all[unit] = bytes
	}
	return all
}

// match returns the paths of the disks for which the expression is true. The error contains the
// position of a mistake.
func match(q nodespec.DiskMatchRequest) ([]string, error) {
	var variables []cel.EnvOption
	for name, value := range facts(nodespec.DiskMatchDisk{}) {
		kind := cel.StringType
		switch value.(type) {
		case int64:
			kind = cel.IntType
		case bool:
			kind = cel.BoolType
		}
		variables = append(variables, cel.Variable(name, kind))
	}
	env, err := cel.NewEnv(variables...)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(q.Expression)
	if issues.Err() != nil {
		var all []string
		for _, e := range issues.Errors() {
			all = append(all, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, strings.TrimSpace(e.Message)))
		}
		known := slices.Sorted(maps.Keys(facts(nodespec.DiskMatchDisk{})))
		return nil, fmt.Errorf("is not an expression about a disk: %s; the variables are %s", strings.Join(all, "; "), strings.Join(known, ", "))
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("is neither true nor false, but %s", ast.OutputType())
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, d := range q.Disks {
		value, _, err := program.Eval(facts(d))
		if err != nil {
			return nil, fmt.Errorf("cannot be evaluated for %s: %w", d.Path, err)
		}
		if value.Value() == true {
			found = append(found, d.Path)
		}
	}
	return found, nil
}
