// Package wake wakes a loop from other goroutines. It carries no value; package cell does.
package wake

// Signal wakes a loop that receives from it. A second wake-up before the loop receives has no
// effect. New makes it.
type Signal chan struct{}

// New returns a signal.
func New() Signal { return make(Signal, 1) }

// Wake sends the signal without blocking.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default: // a wake-up is pending
	}
}
