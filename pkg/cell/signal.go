package cell

// Signal wakes a loop that receives from it. It carries no value. A second Wake before the loop
// receives has no effect. NewSignal creates a Signal.
type Signal chan struct{}

// NewSignal returns a signal.
func NewSignal() Signal { return make(Signal, 1) }

// Wake sends the signal without blocking.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default: // a wake-up is pending
	}
}
