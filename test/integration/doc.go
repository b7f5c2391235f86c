// Package integration runs stories, which are end-to-end tests on booted machines. Each file
// testdata/*.txtar is a story and runs from top to bottom.
//
// A story uses only the API of a machine (with orlopctl and kubectl, like a user), its console and
// its power switch. The verbs are in verbs_test.go. Package vm provides the machines and their
// closed network. For a failed story, the output has its steps with their times, and the end of
// each console.
//
// Run the stories with `make stories`.
package integration
