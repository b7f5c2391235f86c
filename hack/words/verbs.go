package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// firstCommit is the last commit before the rule for subjects began.
const firstCommit = "05df4bdd7f72"

// subjectLength is the largest length of a subject, in characters.
const subjectLength = 60

// verbs contains the verbs with which a subject can begin, in the imperative, one per line. Add a
// verb if it is missing.
//
//go:embed verbs.txt
var verbs string

var subjectForm = regexp.MustCompile(`^([^:]+): ([a-z-]+) \S`)

// checkSubject checks that the subject of a commit has the form `pkg/path: imperative verb …`. It
// returns a description of the error, or "".
func checkSubject(subject string) string {
	if n := len([]rune(subject)); n > subjectLength {
		return fmt.Sprintf("has %d characters; at most %d are allowed", n, subjectLength)
	}
	m := subjectForm.FindStringSubmatch(subject)
	if m == nil {
		return "expected `pkg/path: imperative verb …`"
	}
	if !slices.Contains(strings.Fields(verbs), m[2]) {
		return fmt.Sprintf("%q is no verb of hack/words/verbs.txt; begin with an imperative verb", m[2])
	}
	return ""
}
