package cell

import "testing"

// TestSignal checks that two wake-ups before the loop receives are one signal.
func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Wake()
	s.Wake()
	<-s
	select {
	case <-s:
		t.Error("two wake-ups before the loop receives are two signals")
	default:
	}
}
