package cell

// Signal wakes a loop that receives from it. It carries no value. A second wake-up before the loop
// receives has no effect. NewSignal makes it.
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
