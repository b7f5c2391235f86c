package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// report is the format of build/conformance.json; docs/conformance.md describes its fields.
type report struct {
	Kubernetes string             `json:"kubernetes"`
	Focus      string             `json:"focus"`
	Skip       string             `json:"skip,omitempty"`
	Total      int                `json:"total"`
	Passed     int                `json:"passed"`
	Failed     int                `json:"failed"`
	Skipped    int                `json:"skipped"`
	Left       int                `json:"left"`
	Failures   []string           `json:"failures,omitempty"`
	Tests      map[string]outcome `json:"tests"`
}

// readReport reads the report of an earlier run. If there is no file, it returns an empty report.
func readReport(file string) (report, error) {
	r := report{Tests: map[string]outcome{}}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("report: cannot read: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: is no report: %w; remove it", file, err)
	}
	return r, nil
}

// count counts the outcomes of the tests with these names, and deletes the outcomes of other tests.
func (r *report) count(names []string) {
	kept := map[string]outcome{}
	r.Total, r.Passed, r.Failed, r.Skipped, r.Left, r.Failures = len(names), 0, 0, 0, 0, nil
	for _, name := range names {
		o, ran := r.Tests[name]
		if !ran {
			r.Left++
			continue
		}
		kept[name] = o
		switch o.Outcome {
		case passed:
			r.Passed++
		case skipped:
			r.Skipped++
		default:
			r.Failed++
			r.Failures = append(r.Failures, name)
		}
	}
	slices.Sort(r.Failures)
	r.Tests = kept
}

// left returns the names of the tests that failed or have no outcome.
func (r report) left(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		o := r.Tests[name].Outcome
		return o == passed || o == skipped
	})
}

// write replaces the report, and the JUnit file in the same directory.
func (r report) write(file string, names []string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	xml, err := writeJUnit(r.Tests, names)
	if err != nil {
		return err
	}
	// Each file is replaced atomically, so an interruption does not lose the results of hours.
	return errors.Join(renameio.WriteFile(file, append(text, '\n'), 0o644), renameio.WriteFile(strings.TrimSuffix(file, ".json")+".xml", xml, 0o644))
}
