package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
)

// source is a machine in a cluster whose state a test sets.
type source struct {
	now    *cell.Cell[Snapshot]
	floor  error    // error of ReadEpochFloor
	waits  []string // the services that do not run with the configuration yet
	failed error    // error of WaitingServices
}

func newSource(applied time.Time) *source {
	c := config.New("m1", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	return &source{now: cell.New(Snapshot{Machine: Machine{Config: c, Applied: applied}})}
}

func (s *source) reporter() *Reporter {
	return NewReporter(Deps{
		Read:           func() Snapshot { now, _ := s.now.Get(); return now },
		Changes:        []cell.View[struct{}]{s.now.View().Changes()},
		ReadEpochFloor: func(context.Context) (int, error) { return 3, s.floor },
		ReleaseCheck: func(h *api.HealthResponse, floor int, _ time.Time) {
			Add(h, &api.HealthCheck{Name: "release", Ok: true, Detail: fmt.Sprint(floor)})
		},
		WaitingServices: func(context.Context, *config.Config) ([]string, error) { return s.waits, s.failed },
	})
}

// list returns the checks of a health: name, "!" if it failed, and the details of failed checks.
func list(h *api.HealthResponse) (out []string) {
	for _, c := range h.Checks {
		one := c.Name
		if !c.Ok {
			one += "! " + c.Detail
		}
		out = append(out, one)
	}
	return out
}

// TestReportOrder checks that the report contains the checks of all subjects, in a fixed order.
func TestReportOrder(t *testing.T) {
	s := newSource(time.Now().Add(-time.Hour))
	s.now.Update(func(n Snapshot) Snapshot {
		n.Operations, n.Volumes, n.Firewall = "operations fail: x", "etcd: no disk", "no rules"
		for name, check := range map[string]**api.HealthCheck{"panics": &n.Panics, "system-extensions": &n.Extensions, "storage": &n.Storage, "wear": &n.Wear, "turn": &n.Turn} {
			*check = &api.HealthCheck{Name: name, Ok: true}
		}
		return n
	})
	err := s.reporter().Watch(t.Context(), func(h *api.HealthResponse) (bool, error) {
		want := []string{"configuration! operations fail: x", "volumes! etcd: no disk", "firewall! no rules", "panics", "release", "system-extensions", "storage", "wear", "turn"}
		if got := list(h); !slices.Equal(got, want) || h.Healthy {
			t.Errorf("%q, want %q", got, want)
		}
		return false, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReportWaits checks that Watch reports the health again after a change. While services do not
// run with the configuration, or STATE does not answer, Watch reports it each second.
func TestReportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(time.Now())
		s.waits, s.floor = []string{"orchestrator-api"}, limits.ErrUnknown
		began, got := time.Now(), []string(nil)
		err := s.reporter().Watch(t.Context(), func(h *api.HealthResponse) (bool, error) {
			got = append(got, fmt.Sprintf("%v %t %s", time.Since(began), h.Healthy, strings.Join(list(h), "; ")))
			switch len(got) {
			case 1:
				s.floor = nil
			case 2:
				s.waits, s.failed = nil, fmt.Errorf("%w: no result", limits.ErrUnknown)
			case 3:
				s.failed = nil
			case 4: // no service waits, and STATE answers, so only a change causes a report
				time.AfterFunc(time.Hour, func() { s.now.Update(func(n Snapshot) Snapshot { n.Firewall = "no rules"; return n }) })
			}
			return len(got) < 5, nil
		})
		want := []string{
			"0s false configuration; release; storage! STATE does not answer (unknown), so it is unknown which epoch is the highest of a committed version; reboot the machine, and replace the disk if this happens again",
			"1s false configuration! not active yet: orchestrator-api; release",
			"2s false configuration; release; storage! STATE does not answer (unknown: no result), so it is unknown which services do not run with the configuration yet; reboot the machine, and replace the disk if this happens again",
			"3s true configuration; release",
			"1h0m3s false configuration; firewall! no rules; release",
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// TestReportEnds checks that Watch returns if its callback returns an error or the context ends.
func TestReportEnds(t *testing.T) {
	r, stop := newSource(time.Time{}).reporter(), errors.New("closed")
	if err := r.Watch(t.Context(), func(*api.HealthResponse) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := r.Watch(ctx, func(*api.HealthResponse) (bool, error) { cancel(); return true, nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
