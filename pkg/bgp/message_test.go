package bgp

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// TestDamaged: a damaged open is answered with a notification. A damaged notification is not.
func TestDamaged(t *testing.T) {
	for kind, answered := range map[Kind]bool{OpenMessage: true, NotificationMessage: false} {
		header := append(bytes.Repeat([]byte{0xff}, 16), 0, 20, byte(kind))
		_, err := read(bytes.NewReader(slices.Concat(header, []byte{6})), false, true)
		var f *failure
		if err == nil || errors.As(err, &f) != answered {
			t.Errorf("kind %d: %v; answered: %t, want %t", kind, err, !answered, answered)
		}
	}
}

// TestRecovered: a panic of the codec is an error, also in a process that records no panics.
func TestRecovered(t *testing.T) {
	err := recovered(func() error { panic("index out of range\n[3]") })
	if !errors.Is(err, errPanic) || err.Error() != "cannot decode a message of the peer: panic: index out of range?[3]" {
		t.Errorf("%q", err)
	}
	if err := recovered(func() error { return nil }); err != nil {
		t.Errorf("without a panic: %v", err)
	}
}
