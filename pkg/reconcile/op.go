// Package reconcile converges the state of the kernel and of files to the desired state. All
// domains use it.
//
// A domain (disk, network, host, …) has three functions. Plan computes the desired state from a
// configuration. Read reads the actual state. Diff, a pure function, returns the operations from
// the actual to the desired state. Converge repeats read, diff and the operations until no
// operation remains. The caller decides when to converge.
package reconcile

import "context"

// Op is an operation: a change to the machine.
//
// String describes the change for operators, for example "format STATE (/dev/vda4) as ext4", in dry
// runs, golden files and logs. Do performs the change. Do must be safe to repeat: after a power cut
// the machine performs the operation again.
type Op interface {
	String() string
	Do(ctx context.Context) error
}
