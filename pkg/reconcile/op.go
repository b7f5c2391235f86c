// Package reconcile brings the kernel to what is wanted, in one place for all domains.
//
// A domain (disk, network, host, …) offers three functions: Plan, which turns a configuration into
// a want; Read, which looks at the kernel; and Diff, which is pure and returns the operations that
// turn the one into the other. Converge repeats read → diff → do until nothing is left to do. When
// that is due is for its caller to know.
package reconcile

import "context"

// Op is one change to the machine.
//
// String says what it does as an operator would say it ("format STATE (/dev/vda4) as ext4"): it is
// the line of a dry run, of a golden file and of the log. Do performs it. Do is safe to repeat: a
// machine may lose power at any moment and do the same operation again.
type Op interface {
	String() string
	Do(ctx context.Context) error
}
