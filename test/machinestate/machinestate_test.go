package machinestate

import (
	"encoding/json"
	"testing"
)

func TestUse(t *testing.T) {
	before := Use{CPUs: 2, Uptime: 100, Idle: 150, Seconds: map[string]float64{"api": 10, "apid": 1}}
	after := Use{CPUs: 2, Uptime: 110, Idle: 155, Seconds: map[string]float64{"api": 22, "apid": 1.01, "new": 1}}
	if got := after.BusySince(before); got == nil || *got != 0.75 {
		t.Errorf("busy: %v", got)
	}
	if got := before.BusySince(before); got != nil {
		t.Errorf("busy share of no time: %v", *got)
	}
	if got := after.Since(before); len(got) != 2 || got["api"] != 12 || got["new"] != 1 {
		t.Errorf("processor time: %v", got)
	}
}

// TestMoment also checks an entry of release 0.1.0, which has the field what in place of name.
func TestMoment(t *testing.T) {
	for _, text := range []string{`{"name": "apid", "seconds": 2.5}`, `{"what": "apid", "seconds": 2.5}`} {
		var m Moment
		if err := json.Unmarshal([]byte(text), &m); err != nil || m != (Moment{"apid", 2.5}) {
			t.Errorf("%s: %+v, %v", text, m, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"seconds": "soon"}`), new(Moment)); err == nil {
		t.Error("a time that is no number is accepted")
	}
}
