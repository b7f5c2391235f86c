package repair

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRepair checks each step, and that a machine does not reboot within minUptime of its boot.
func TestRepair(t *testing.T) {
	for _, c := range []struct {
		step     string
		up       time.Duration
		failure  error // the error of Started
		done     []string
		code     codes.Code
		contains string
	}{
		{"RestartServices", time.Second, nil, []string{"restart containerd", "restart orchestrator-node"}, codes.OK, ""},
		{"Reboot", minUptime, nil, []string{"reboot by machine object"}, codes.OK, ""},
		{"OtherSlot", minUptime, nil, []string{"rollback by machine object"}, codes.OK, ""},
		{"Reboot", minUptime - time.Second, nil, nil, codes.FailedPrecondition, "has booted 9m59s ago"},
		{"OtherSlot", time.Second, nil, nil, codes.FailedPrecondition, "has booted 1s ago"},
		{"Reboot", 0, errors.New("no clock"), nil, codes.FailedPrecondition, "no clock"},
		{"PowerCycle", time.Hour, nil, nil, codes.InvalidArgument, "known are RestartServices, Reboot and OtherSlot"},
		{"", time.Hour, nil, nil, codes.InvalidArgument, "unknown"},
	} {
		var done []string
		d := Deps{
			Started:  func() (time.Time, error) { return time.Now().Add(-c.up), c.failure },
			Restart:  func(service string) error { done = append(done, "restart "+service); return nil },
			Reboot:   func(_ context.Context, by string) error { done = append(done, "reboot by "+by); return nil },
			Rollback: func(_ context.Context, by string) error { done = append(done, "rollback by "+by); return nil },
		}
		err := d.Do(t.Context(), c.step, "machine object")
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.contains) || !slices.Equal(done, c.done) {
			t.Errorf("%s after %v: %q, %v; want %q, %v", c.step, c.up, done, err, c.done, c.code)
		}
	}
	failing := Deps{Restart: func(string) error { return errors.New("service containerd: cannot restart: it is being stopped") }}
	if err := failing.Do(t.Context(), "RestartServices", ""); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "being stopped") {
		t.Errorf("a service that cannot be restarted: %v", err)
	}
}
