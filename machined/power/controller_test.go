package power

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestSecondRequest checks the requests after the first: a request with the same mode succeeds, and
// a request with another mode or a reset is an error.
func TestSecondRequest(t *testing.T) {
	c := NewController(Deps{})
	if c.Stopping() || c.Check() != nil || c.Running().Err() != nil {
		t.Error("the machine is shutting down before the first request")
	}
	// The test stores the request, because Shutdown would also perform it.
	c.request.Store(&Request{To: Reboot, Why: "asked by alice"})
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
		t.Errorf("Check returns %v", c.Check())
	}
}

// TestPerform checks that Perform starts a shutdown without a request, and that later calls of
// Shutdown and Perform start no second shutdown.
func TestPerform(t *testing.T) {
	performed, lines := make(chan Request, 4), make(chan string, 4)
	c := NewController(Deps{Console: func(line string) { lines <- line }})
	c.perform = func(r Request) {
		performed <- r
		select {}
	}
	go c.Perform(Request{To: Reboot, Why: "boot: mount failed"})
	if r := <-performed; r.Why != "boot: mount failed" {
		t.Errorf("performed: %v", r)
	}
	if !c.Stopping() || status.Code(c.Check()) != codes.FailedPrecondition {
		t.Error("after Perform, Stopping or Check does not report the shutdown")
	}
	if err := c.Shutdown(Request{To: Reboot, Why: "asked by alice"}); err != nil {
		t.Errorf("an equal request: %v", err)
	}
	if err := c.Shutdown(Request{To: PowerOff}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another mode: %v", err)
	}
	go c.Perform(Request{To: Reboot, Why: "the local API failed"})
	const want = "reboot: the local API failed: not performed: the machine is already shutting down (reboot: boot: mount failed); call again after it has booted"
	if line := <-lines; line != want {
		t.Errorf("the console shows %q; want %q", line, want)
	}
	if len(performed) > 0 {
		t.Errorf("a second shutdown was started: %v", <-performed)
	}
}

// TestDefaultGracePeriod checks that the kubelet has the configured time for pods and about 2 s
// more.
func TestDefaultGracePeriod(t *testing.T) {
	for pods, want := range map[time.Duration]time.Duration{25 * time.Second: time.Minute, 2 * time.Second: -50 * time.Second / 3, 5 * time.Minute: 302*time.Second*10/3 - 30*time.Second} {
		got := defaultGracePeriod(pods)
		if difference := got - want; difference.Abs() > time.Second {
			t.Errorf("pods %s: %s, want %s", pods, got, want)
		}
		part := Plan(got + unmountTime)[0].By * 2 / 3 // the kubelet's part (machined/pods)
		if part < pods+time.Second || part > pods+3*time.Second {
			t.Errorf("pods %s: the kubelet has %s", pods, part)
		}
	}
}
