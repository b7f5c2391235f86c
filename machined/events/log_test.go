package events

import (
	"errors"
	"slices"
	"testing"
)

// TestOneLine checks that the log joins an error of several lines to a message of one line, because
// orlopctl and the console show one event per line.
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
