package main

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

// What can come of a test.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped" // the suite itself says that it does not apply, and why
)

// outcome is what the suite says of a test.
type outcome struct {
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
	// Commit is the state of the repository that was judged, with -dirty behind it if it had
	// changes.
	Commit string `json:"commit,omitempty"`
	// Message is why it failed or was skipped.
	Message string `json:"message,omitempty"`
}

// junit is the part of the form that the suite writes (and CI systems read) that says what came of
// a test.
type junit struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name  string      `xml:"name,attr"`
	Cases []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string    `xml:"name,attr"`
	Time    float64   `xml:"time,attr"`
	Failure *junitWhy `xml:"failure"`
	Error   *junitWhy `xml:"error"`
	Skipped *junitWhy `xml:"skipped"`
}

type junitWhy struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
}

// What Ginkgo says of a test that was not run, because nobody asked for it or the run was broken
// off before, and of one that was broken off.
const (
	notRun      = "skipped" // one that skips itself says why behind it
	interrupted = "interrupted"
)

// parseJUnit finds the tests of these names in a report that were run to their ends.
func parseJUnit(report []byte, names []string) (map[string]outcome, error) {
	var j junit
	if err := xml.Unmarshal(report, &j); err != nil {
		return nil, fmt.Errorf("JUnit report: %w", err)
	}
	found := map[string]outcome{}
	for _, s := range j.Suites {
		for _, c := range s.Cases {
			name := strings.TrimPrefix(c.Name, "[It] ") // the kind of Ginkgo's node
			if slices.Contains(names, name) && c.ended() {
				found[name] = worse(found[name], c.outcome())
			}
		}
	}
	return found, nil
}

func (c junitCase) ended() bool {
	return (c.Skipped == nil || c.Skipped.Message != notRun) && (c.Error == nil || c.Error.Type != interrupted)
}

func (c junitCase) outcome() outcome {
	switch {
	case c.Failure != nil:
		return outcome{Outcome: failed, Seconds: c.Time, Message: c.Failure.Message}
	case c.Error != nil:
		return outcome{Outcome: failed, Seconds: c.Time, Message: c.Error.Message}
	case c.Skipped != nil:
		return outcome{Outcome: skipped, Seconds: c.Time, Message: c.Skipped.Message}
	}
	return outcome{Outcome: passed, Seconds: c.Time}
}

// worse is what came of a test that stands in a table: of all its rows the worst, and their time
// together.
func worse(a, b outcome) outcome {
	rank := map[string]int{"": 0, skipped: 1, passed: 2, failed: 3}
	total := a.Seconds + b.Seconds
	if rank[a.Outcome] >= rank[b.Outcome] {
		b = a
	}
	b.Seconds = total
	return b
}

// writeJUnit is the report of all that was run.
func writeJUnit(results map[string]outcome, names []string) ([]byte, error) {
	s := junitSuite{Name: "Kubernetes e2e"}
	for _, name := range names {
		r, ran := results[name]
		if !ran {
			continue
		}
		c := junitCase{Name: name, Time: r.Seconds}
		switch r.Outcome {
		case failed:
			c.Failure = &junitWhy{Message: r.Message}
		case skipped:
			c.Skipped = &junitWhy{Message: r.Message}
		}
		s.Cases = append(s.Cases, c)
	}
	text, err := xml.MarshalIndent(junit{Suites: []junitSuite{s}}, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}
