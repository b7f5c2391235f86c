package machinestate

import (
	"encoding/json"
	"testing"
)

// TestUse checks the share of time in which the processors were busy, and the processor time of the
// services. The service apid used only 0.01 s between the two values, so Since omits apid.
func TestUse(t *testing.T) {
	before := Use{CPUs: 2, Uptime: 100, Idle: 150, Seconds: map[string]float64{"api": 10, "apid": 1}}
	after := Use{CPUs: 2, Uptime: 110, Idle: 155, Seconds: map[string]float64{"api": 22, "apid": 1.01, "new": 1}}
	if got := after.BusySince(before); got == nil || *got != 0.75 {
		t.Errorf("BusySince does not return 0.75, but %v", got)
	}
	if got := before.BusySince(before); got != nil {
		t.Errorf("BusySince returns %v if no time has passed, want nil", *got)
	}
	if got := after.Since(before); len(got) != 2 || got["api"] != 12 || got["new"] != 1 {
		t.Errorf("Since returns %v, want 12 s for api and 1 s for new", got)
	}
}

// TestMoment decodes an entry of this version, and an entry of release 0.1.0, which has the field
// what in place of the field name.
func TestMoment(t *testing.T) {
	for _, text := range []string{`{"name": "apid", "seconds": 2.5}`, `{"what": "apid", "seconds": 2.5}`} {
		var m Moment
		if err := json.Unmarshal([]byte(text), &m); err != nil || m != (Moment{"apid", 2.5}) {
			t.Errorf("%s is decoded as %+v, %v", text, m, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"seconds": "soon"}`), new(Moment)); err == nil {
		t.Error("UnmarshalJSON accepts a time that is not a number")
	}
}
