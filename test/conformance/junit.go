package main

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

// These are the outcomes of a test.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped" // the suite reports that the test does not apply, with the reason
)

// outcome is the result that the suite reports for a test.
type outcome struct {
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
	// Commit is the commit of the tested repository, with the suffix -dirty for uncommitted
	// changes.
	Commit string `json:"commit,omitempty"`
	// Message is the reason why a test failed or was skipped.
	Message string `json:"message,omitempty"`
}

// junit is the part of the JUnit format that contains the outcomes.
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

// notRun is Ginkgo's message for a test that did not run: it was not selected, or the run was
// interrupted before the test. interrupted is Ginkgo's error type for a test that was running when
// the run was interrupted.
const (
	notRun      = "skipped" // the message of a test that skips itself also has a reason
	interrupted = "interrupted"
)

// parseJUnit returns the outcomes of the tests with these names, if they ran to their end.
func parseJUnit(report []byte, names []string) (map[string]outcome, error) {
	var j junit
	if err := xml.Unmarshal(report, &j); err != nil {
		return nil, fmt.Errorf("JUnit report: %w", err)
	}
	found := map[string]outcome{}
	for _, s := range j.Suites {
		for _, c := range s.Cases {
			name := strings.TrimPrefix(c.Name, "[It] ") // Ginkgo's type of node
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

// worse combines the outcomes of two rows of a table test. It prefers failed to passed, and passed
// to skipped. The time is the sum of both times.
func worse(a, b outcome) outcome {
	rank := map[string]int{"": 0, skipped: 1, passed: 2, failed: 3}
	total := a.Seconds + b.Seconds
	if rank[a.Outcome] >= rank[b.Outcome] {
		b = a
	}
	b.Seconds = total
	return b
}

// writeJUnit returns a report of the tests in names that have a result, in the order of names.
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
