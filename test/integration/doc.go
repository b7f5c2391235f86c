// Package integration tells stories about booted machines: testdata/*.txtar, one story each, read
// from top to bottom.
//
// A story speaks only the machine's API (through orlopctl and kubectl, as a user would), its
// console and its power switch. The verbs are in verbs_test.go. The machines and their closed
// network come from vm. When a story fails it prints what it did with the time of each step,
// and the ends of the consoles.
//
// Run it with `make stories`.
package integration
