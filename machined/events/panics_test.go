package events

import (
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/panics"
)

// TestPanicsAreBounded checks that only the first panics add events and records of the audit log,
// so many panics do not displace other entries. All panics are counted.
func TestPanicsAreBounded(t *testing.T) {
	log, recorded := NewLog(), 0
	p := NewPanics(func(kind, message string) { log.Add("panics", kind, message) }, func(audit.Call) { recorded++ })
	for range 1000 {
		p.Add(&panics.Error{Where: "a", Value: "b", Stack: strings.Repeat("line\n", 1000)})
	}
	if n := len(log.After(0)); n > maxPanicsRecorded*(stackLines+1) || recorded > maxPanicsRecorded {
		t.Errorf("%d events, %d records of the audit log", n, recorded)
	}
	if now, _ := p.State().Get(); now.Panics != 1000 {
		t.Errorf("%d panics are counted, want 1000", now.Panics)
	}
}

// TestBackingOff checks that the state contains a task while it waits for its restart.
func TestBackingOff(t *testing.T) {
	p := NewPanics(func(string, string) {}, func(audit.Call) {})
	k := p.Restarter()
	k.BackingOff("a", true)
	k.BackingOff("b", true)
	k.BackingOff("a", false)
	if now, _ := p.State().Get(); !slices.Equal(now.BackingOff, []string{"b"}) {
		t.Errorf("%v", now.BackingOff)
	}
}
