// Package diskselector evaluates a disk selector, a CEL expression over the disks of a machine; see
// package nodespec. Other packages use Compile for hosts.
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
	return map[string]any{
		"disk.path": d.Path, "disk.size": d.Size, "disk.sectorSize": d.SectorSize, "disk.model": d.Model, "disk.serial": d.Serial,
		"disk.wwid": d.WWID, "disk.bus": d.Bus, "disk.transport": d.Transport, "disk.rotational": d.Rotational, "disk.readOnly": d.ReadOnly,
	}
}

// match returns the paths of the disks for which the expression is true. The error contains the
// position of a mistake.
func match(q nodespec.DiskMatchRequest) ([]string, error) {
	program, err := Compile(q.Expression, "a disk", facts(nodespec.DiskMatchDisk{}))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, d := range q.Disks {
		yes, err := program.Matches(facts(d))
		if err != nil {
			return nil, fmt.Errorf("cannot be evaluated for %s: %w", d.Path, err)
		}
		if yes {
			found = append(found, d.Path)
		}
	}
	return found, nil
}

// Program is a compiled expression about a subject.
type Program struct{ program cel.Program }

// Compile compiles an expression, which must be true or false. subject describes the values for
// error messages, such as "a disk". example maps each variable to any value of its type: string,
// int64, bool, []any or map[string]any. The constants for sizes are also variables. The error
// contains the position of a mistake.
func Compile(expression, subject string, example map[string]any) (*Program, error) {
	variables := []cel.EnvOption{}
	for name, value := range withUnits(example) {
		kind := cel.StringType
		switch value.(type) {
		case int64:
			kind = cel.IntType
		case bool:
			kind = cel.BoolType
		case []any:
			kind = cel.ListType(cel.DynType)
		case map[string]any:
			kind = cel.MapType(cel.StringType, cel.DynType)
		}
		variables = append(variables, cel.Variable(name, kind))
	}
	env, err := cel.NewEnv(variables...)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		var all []string
		for _, e := range issues.Errors() {
			all = append(all, fmt.Sprintf("%d:%d: %s", e.Location.Line(), e.Location.Column()+1, strings.TrimSpace(e.Message)))
		}
		known := slices.Sorted(maps.Keys(withUnits(example)))
		return nil, fmt.Errorf("is not an expression about %s: %s; the variables are %s", subject, strings.Join(all, "; "), strings.Join(known, ", "))
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("is neither true nor false, but %s", ast.OutputType())
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit))
	if err != nil {
		return nil, err
	}
	return &Program{program}, nil
}

// Matches reports whether the expression is true for values of the variables.
func (p *Program) Matches(values map[string]any) (bool, error) {
	value, _, err := p.program.Eval(withUnits(values))
	return err == nil && value.Value() == true, err
}

// withUnits returns the variables together with the constants for sizes.
func withUnits(variables map[string]any) map[string]any {
	all := maps.Clone(variables)
	for unit, bytes := range units {
		all[unit] = bytes
	}
	return all
}
