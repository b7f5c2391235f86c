package config

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// report collects the problems of a file.
type report struct {
	file     string
	origins  map[string]Origin // positions of the parsed fields, by path
	problems Problems
	// broken contains the paths of values that could not be parsed: validation reports no further
	// problems at these paths and below. reported contains the paths for which validation has
	// reported a problem.
	broken, reported map[string]bool
}

func newReport(file string, origins map[string]Origin) *report {
	return &report{file: file, origins: origins, broken: map[string]bool{}, reported: map[string]bool{}}
}

// The method at adds a problem of a value that cannot be parsed, with the position of its node.
func (r *report) at(n *yaml.Node, path string, w wrong) {
	r.broken[path] = true
	r.add(n.Line, n.Column, path, w)
}

func (r *report) add(line, column int, path string, w wrong) {
	r.problems = append(r.problems, Problem{
		File: r.file, Line: line, Column: column, Field: path,
		Reason: w.reason, Expected: w.expected, Nearest: w.nearest, Hint: w.hint,
	})
}

// The method on adds a problem of a parsed field, unless the field has a problem already. The
// position is that of the field, or of the nearest enclosing value in the file if the field is not
// in the file.
func (r *report) on(path string, w wrong) {
	if r.reported[path] {
		return
	}
	for up := path; up != ""; up = parent(up) {
		if r.broken[up] {
			return
		}
	}
	place := path
	for place != "" && r.origins[place].IsDefault() {
		place = parent(place)
	}
	o := r.origins[place]
	r.reported[path] = true
	r.add(o.Line, o.Column, path, w)
}

// parent returns the path of the value that contains the value at a path.
func parent(path string) string {
	cut := strings.LastIndexAny(path, ".[")
	if strings.HasSuffix(path, `"]`) {
		cut = strings.LastIndex(path, `["`)
	}
	return path[:max(cut, 0)]
}
