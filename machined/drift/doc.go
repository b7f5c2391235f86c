// Package drift reports the operations that would restore the configured state now: the diff of
// every domain, in the form of a dry run.
//
// Usually the drift is empty, because each domain performs its operations at once; an operation
// that remains has failed, and the events contain the reason. The drift is computed only while a
// client watches, and at most every 10 seconds, because it reads the disks.
//
// The package computes no diff and performs no operation: each domain is a Source.
package drift
