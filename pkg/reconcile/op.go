// Package reconcile converges the kernel to the desired state. It is the common mechanism of all
// domains.
//
// A domain (disk, network, host, …) provides three functions: Plan, which computes the desired
// state from a configuration; Read, which reads the actual state from the kernel; and Diff, which
// is pure and returns the operations from the actual to the desired state. Converge repeats read →
// diff → do until no operation remains. The caller decides when to converge.
package reconcile

import "context"

// Op is a change to the machine.
//
// String describes it for operators ("format STATE (/dev/vda4) as ext4"): it is the line of a dry
// run, of a golden file and of the log. Do performs it. Do is safe to repeat, because a machine may
// lose power at any moment and then performs the operation again.
type Op interface {
	String() string
	Do(ctx context.Context) error
}
