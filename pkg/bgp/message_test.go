package bgp

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// TestDamaged: the answer to a damaged open message is a notification. A damaged notification gets
// no answer.
func TestDamaged(t *testing.T) {
	for kind, answered := range map[Kind]bool{OpenMessage: true, NotificationMessage: false} {
		header := append(bytes.Repeat([]byte{0xff}, 16), 0, 20, byte(kind))
		_, err := read(bytes.NewReader(slices.Concat(header, []byte{6})), false, true)
		var f *failure
		if err == nil || errors.As(err, &f) != answered {
			t.Errorf("message kind %d: %v; answered with a notification: %t, want %t", kind, err, !answered, answered)
		}
	}
}

// TestRecovered: the function recovered turns a panic of the codec into an error, even in a process
// that records no panics.
func TestRecovered(t *testing.T) {
	err := recovered(func() error { panic("index out of range\n[3]") })
	if !errors.Is(err, errPanic) || err.Error() != "cannot decode a message of the peer: panic: index out of range?[3]" {
		t.Errorf("%q", err)
	}
	if err := recovered(func() error { return nil }); err != nil {
		t.Errorf("without a panic: %v", err)
	}
}
