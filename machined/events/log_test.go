package events

import (
	"errors"
	"slices"
	"testing"
)

// TestOneLine checks that the message of an event is one line, also if it is an error of several
// lines: orlopctl and the console show an event per line.
func TestOneLine(t *testing.T) {
	log := NewLog()
	log.Add("disk", "failure", errors.Join(errors.New("cannot mount STATE"), errors.New("no such device")).Error())
	log.From("disk")("failure", "cannot mount:\r\n  no such device\n")
	var got []string
	for _, e := range log.After(0) {
		got = append(got, e.Message)
	}
	if want := []string{"cannot mount STATE; no such device", "cannot mount: no such device"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
