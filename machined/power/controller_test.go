package power

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestSecondRequest checks that only the first request counts: an equal request succeeds, and a
// different request, or a reset, is an error.
func TestSecondRequest(t *testing.T) {
	c := NewController(Deps{})
	if c.Stopping() || c.Check() != nil || c.Running().Err() != nil {
		t.Error("stopping before a request")
	}
	c.request.Store(&Request{To: Reboot, Why: "asked by alice"}) // Shutdown would perform it
	for _, test := range []struct {
		name    string
		request Request
		want    codes.Code
	}{
		{"equal", Request{To: Reboot, Why: "asked by bob"}, codes.OK},
		{"another mode", Request{To: PowerOff}, codes.FailedPrecondition},
		{"a reset", Request{To: Reboot, Wipe: []string{"STATE"}}, codes.FailedPrecondition},
	} {
		if got := status.Code(c.Shutdown(test.request)); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
	if !c.Stopping() || status.Convert(c.Check()).Message() != "the machine is already shutting down (reboot: asked by alice); call again after it has booted" {
		t.Errorf("%v", c.Check())
	}
}
