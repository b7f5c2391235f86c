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
	// broken contains the paths that could not be parsed, so that validation reports no further
	// problems of them or their parts. judged contains the paths for which validation has reported
	// a problem.
	broken, judged map[string]bool
}

func newReport(file string, origins map[string]Origin) *report {
	return &report{file: file, origins: origins, broken: map[string]bool{}, judged: map[string]bool{}}
}

// at reports a problem at a node.
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

// on reports a problem of a parsed field, unless a problem of the field was reported already.
func (r *report) on(path string, w wrong) {
	if r.judged[path] {
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
	r.judged[path] = true
	r.add(o.Line, o.Column, path, w)
}

// parent returns the path of the enclosing value.
func parent(path string) string {
	cut := strings.LastIndexAny(path, ".[")
	if strings.HasSuffix(path, `"]`) {
		cut = strings.LastIndex(path, `["`)
	}
	return path[:max(cut, 0)]
}
