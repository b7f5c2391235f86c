// Package integration runs stories, which are end-to-end tests on booted machines: each
// testdata/*.txtar is one story and runs from top to bottom.
//
// A story uses only the machine's API (through orlopctl and kubectl, like a user), its console and
// its power switch. The verbs are in verbs_test.go. Package vm provides the machines and their
// closed network. A failed story prints its steps with their times, and the ends of the consoles.
//
// Run the stories with `make stories`.
package integration
