package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
)

// TestVersionDates checks that an unknown date of the pinned versions is not sent as 1970.
func TestVersionDates(t *testing.T) {
	var pins buildinfo.Pins
	s := machineService{deps: MachineDeps{
		Release: func() buildinfo.Release { return buildinfo.Release{Version: "1.2.3", Pins: pins} }, Name: func() string { return "m1" },
	}}
	v, err := s.Version(t.Context(), &api.VersionRequest{})
	if err != nil || v.DebianArchive != nil || v.NewestModule != nil {
		t.Errorf("without dates: %v, %v", v, err)
	}
	pins = buildinfo.Pins{Debian: 1_700_000_000, Modules: 1_600_000_000}
	v, err = s.Version(t.Context(), &api.VersionRequest{})
	if err != nil || v.DebianArchive.GetSeconds() != pins.Debian || v.NewestModule.GetSeconds() != pins.Modules {
		t.Errorf("with %+v: %v, %v", pins, v, err)
	}
}

// TestReset checks which partitions each mode wipes, that an unknown mode is rejected, and that a
// reset can be forced.
func TestReset(t *testing.T) {
	var wiped []string
	forced := false
	s := machineService{deps: MachineDeps{Reset: func(_ context.Context, s Shutdown) error { wiped, forced = s.Wipe, s.Force; return nil }}}
	for mode, want := range map[api.ResetRequest_Wipe][]string{
		api.ResetRequest_WIPE_UNSPECIFIED: {"STATE"}, api.ResetRequest_WIPE_STATE: {"STATE"},
		api.ResetRequest_WIPE_DATA: {"DATA"}, api.ResetRequest_WIPE_ALL: {"DATA", "STATE"},
	} {
		if _, err := s.Reset(t.Context(), &api.ResetRequest{Wipe: mode}); err != nil || !slices.Equal(wiped, want) {
			t.Errorf("%v wipes %v, %v", mode, wiped, err)
		}
	}
	if _, err := s.Reset(t.Context(), &api.ResetRequest{Force: true}); err != nil || !forced {
		t.Errorf("forced: %v, %v", forced, err)
	}
	wiped = nil
	if _, err := s.Reset(t.Context(), &api.ResetRequest{Wipe: 99}); status.Code(err) != codes.InvalidArgument || wiped != nil {
		t.Errorf("an unknown mode: %v, wipes %v", err, wiped)
	}
}

// TestGracePeriod checks the limits of the time that a caller can give the workloads.
func TestGracePeriod(t *testing.T) {
	var given time.Duration
	s := machineService{deps: MachineDeps{Reboot: func(_ context.Context, s Shutdown) error { given = s.GracePeriod; return nil }}}
	for grace, code := range map[time.Duration]codes.Code{
		0: codes.OK, maxGracePeriod: codes.OK, -time.Second: codes.InvalidArgument, maxGracePeriod + time.Second: codes.InvalidArgument,
	} {
		_, err := s.Reboot(t.Context(), &api.PowerRequest{GracePeriod: durationpb.New(grace)})
		if status.Code(err) != code || code == codes.OK && given != grace {
			t.Errorf("%v: %v, given %v", grace, err, given)
		}
	}
}

// TestInputBeforeState checks that each call that shuts the machine down checks its input before
// the state of the machine. apid authorizes the caller before the call.
func TestInputBeforeState(t *testing.T) {
	busy := status.Error(codes.FailedPrecondition, "the machine is already shutting down")
	start := func(context.Context, Shutdown) error { return busy }
	s := machineService{deps: MachineDeps{Reboot: start, PowerOff: start, Reset: start}}
	for name, call := range map[string]func(valid bool) error{
		"Reboot": func(valid bool) error {
			_, err := s.Reboot(t.Context(), &api.PowerRequest{GracePeriod: durationpb.New(map[bool]time.Duration{false: -1}[valid])})
			return err
		},
		"Shutdown": func(valid bool) error {
			_, err := s.Shutdown(t.Context(), &api.PowerRequest{GracePeriod: durationpb.New(map[bool]time.Duration{false: -1}[valid])})
			return err
		},
		"Reset": func(valid bool) error {
			_, err := s.Reset(t.Context(), &api.ResetRequest{Wipe: map[bool]api.ResetRequest_Wipe{true: api.ResetRequest_WIPE_ALL, false: 99}[valid]})
			return err
		},
	} {
		if invalid, state := status.Code(call(false)), status.Code(call(true)); invalid != codes.InvalidArgument || state != codes.FailedPrecondition {
			t.Errorf("%s: %v for invalid input, %v for the state", name, invalid, state)
		}
	}
}

// TestGet checks the list of the topics, the JSON form of a value, and the error for another name.
func TestGet(t *testing.T) {
	type state struct {
		Phase string `json:"phase"`
	}
	s := machineService{deps: MachineDeps{Topics: []Topic{
		WatchedTopic("stage", cell.New(state{Phase: "running"})),
		PolledTopic("memory", func(context.Context) (int, error) { return 1, nil }),
	}}}
	if got, err := s.Get(t.Context(), &api.GetRequest{}); err != nil || !slices.Equal(got.Topics, []string{"stage", "memory"}) {
		t.Errorf("the list of the topics is %v, %v", got, err)
	}
	got, err := s.Get(t.Context(), &api.GetRequest{Topic: "stage"})
	if err != nil || got.Revision != 1 || got.Value.GetStructValue().Fields["phase"].GetStringValue() != "running" {
		t.Errorf("the topic stage is %v, %v", got, err)
	}
	_, err = s.Get(t.Context(), &api.GetRequest{Topic: "stages"})
	if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "topics: stage, memory") {
		t.Errorf("an unknown topic: %v", err)
	}
}

// TestWipeDisk checks that a call erases exactly one thing: a disk or a volume.
func TestWipeDisk(t *testing.T) {
	var wiped string
	does := func(what string) func(context.Context, string) (string, error) {
		return func(_ context.Context, name string) (string, error) {
			if name == "busy" {
				return "", errors.New("in use")
			}
			wiped = what + " " + name
			return "done", nil
		}
	}
	s := machineService{deps: MachineDeps{WipeDisk: does("disk"), WipeVolume: does("volume")}}
	for want, r := range map[string]*api.WipeDiskRequest{"disk a": {Disk: "a"}, "volume b": {Volume: "b"}} {
		if answer, err := s.WipeDisk(t.Context(), r); err != nil || wiped != want || answer.Done != "done" {
			t.Errorf("WipeDisk has wiped %q, %v; want %q", wiped, err, want)
		}
	}
	wiped = ""
	for _, c := range []struct {
		r    *api.WipeDiskRequest
		code codes.Code
	}{
		{&api.WipeDiskRequest{}, codes.InvalidArgument}, {&api.WipeDiskRequest{Disk: "a", Volume: "b"}, codes.InvalidArgument}, {&api.WipeDiskRequest{Disk: "busy"}, codes.FailedPrecondition},
	} {
		if _, err := s.WipeDisk(t.Context(), c.r); status.Code(err) != c.code || wiped != "" {
			t.Errorf("%v: %v, wiped %q", c.r, err, wiped)
		}
	}
}
