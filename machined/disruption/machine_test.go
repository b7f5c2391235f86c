package disruption

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption"
)

// TestDescribe checks which machines are part of a cluster.
func TestDescribe(t *testing.T) {
	address := netip.MustParseAddr("10.0.0.11")
	in := func(role config.Role) *config.Config {
		c := config.New("m1", role)
		c.Cluster = &config.Cluster{}
		c.Cluster.Spec.ControlPlanes = []netip.Addr{netip.MustParseAddr("10.0.0.12"), address}
		return c
	}
	plane := disruption.Machine{Name: "m1", ControlPlane: true, Kubernetes: "v1.37.2", Others: true}
	worker := disruption.Machine{Name: "m1", Kubernetes: "v1.37.2"}
	for name, test := range map[string]struct {
		facts Facts
		want  Machine
	}{
		"no configuration":   {Facts{Kubernetes: "v1.37.2"}, Machine{}},
		"no cluster":         {Facts{Config: config.New("m1", config.RoleWorker), Joined: true}, Machine{}},
		"in memory":          {Facts{Config: in(config.RoleControlPlane), InMemory: true}, Machine{}},
		"a control plane":    {Facts{Config: in(config.RoleControlPlane), Kubernetes: "v1.37.2", Others: true, Addresses: []netip.Addr{netip.MustParseAddr("fd00::1"), address}}, Machine{plane, "10.0.0.11", true}},
		"another address":    {Facts{Config: in(config.RoleControlPlane), Kubernetes: "v1.37.2", Others: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.13")}}, Machine{plane, "", true}},
		"a worker":           {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2", Joined: true}, Machine{worker, "", true}},
		"a worker that asks": {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2"}, Machine{worker, "", false}},
		"a removed worker":   {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2", Joined: true, Removed: true}, Machine{worker, "", false}},
	} {
		if got := Describe(test.facts); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestAwaitSettled checks that the health counts only after the upgrade is decided, that the turn
// does not count, and that an upgrade which begins meanwhile is awaited.
func TestAwaitSettled(t *testing.T) {
	undecided := cell.New(true)
	watched := 0
	var more []bool
	watch := func(_ context.Context, each func(*api.HealthResponse) (bool, error)) error {
		if now, _ := undecided.Get(); now {
			t.Error("the health of a version on trial counts")
		}
		for _, checks := range [][]*api.HealthCheck{{{Name: "etcd"}, {Name: CheckName}}, {{Name: "etcd", Ok: true}, {Name: CheckName}}} {
			again, err := each(&api.HealthResponse{Checks: checks})
			if more = append(more, again); err != nil {
				return err
			}
		}
		if watched++; watched == 1 { // an upgrade begins, and is decided later
			undecided.Set(true)
			go undecided.Set(false)
		}
		return nil
	}
	go undecided.Set(false)
	if err := AwaitSettled(t.Context(), undecided.View(), watch); err != nil {
		t.Fatal(err)
	}
	for i, again := range more {
		if again != (i%2 == 0) {
			t.Errorf("response %d: waits for more: %t", i, again)
		}
	}
	broken := errors.New("the caller has left")
	if err := AwaitSettled(t.Context(), undecided.View(), func(context.Context, func(*api.HealthResponse) (bool, error)) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	undecided.Set(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AwaitSettled(ctx, undecided.View(), watch); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
