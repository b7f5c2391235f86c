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

// TestDescribe checks what Describe returns about a machine in its cluster: its role, its address,
// and whether it belongs to the cluster. Without a cluster, or if the system runs in memory, the
// result is empty.
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
		"no configuration":             {Facts{Kubernetes: "v1.37.2"}, Machine{}},
		"no cluster":                   {Facts{Config: config.New("m1", config.RoleWorker), Joined: true}, Machine{}},
		"in memory":                    {Facts{Config: in(config.RoleControlPlane), InMemory: true}, Machine{}},
		"a control plane":              {Facts{Config: in(config.RoleControlPlane), Kubernetes: "v1.37.2", Others: true, Addresses: []netip.Addr{netip.MustParseAddr("fd00::1"), address}}, Machine{plane, "10.0.0.11", true}},
		"another address":              {Facts{Config: in(config.RoleControlPlane), Kubernetes: "v1.37.2", Others: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.13")}}, Machine{plane, "", true}},
		"a worker":                     {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2", Joined: true}, Machine{worker, "", true}},
		"a worker that has not joined": {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2"}, Machine{worker, "", false}},
		"a removed worker":             {Facts{Config: in(config.RoleWorker), Kubernetes: "v1.37.2", Joined: true, Removed: true}, Machine{worker, "", false}},
	} {
		if got := Describe(test.facts); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestAwaitSettled checks that AwaitSettled reads the health only after the running upgrade is
// committed or rolled back, ignores two checks, and also waits for an
// upgrade that begins in the meantime.
func TestAwaitSettled(t *testing.T) {
	undecided := cell.New(true)
	watched := 0
	var more []bool
	watch := func(_ context.Context, each func(*api.HealthResponse) (bool, error)) error {
		if now, _ := undecided.Get(); now {
			t.Error("AwaitSettled reads the health of a version on trial")
		}
		for _, checks := range [][]*api.HealthCheck{{{Name: "etcd"}, {Name: CheckName}}, {{Name: "etcd", Ok: true}, {Name: CheckName}, {Name: "ignored"}}} {
			again, err := each(&api.HealthResponse{Checks: checks})
			if more = append(more, again); err != nil {
				return err
			}
		}
		if watched++; watched == 1 { // another upgrade begins, and ends later
			undecided.Set(true)
			go undecided.Set(false)
		}
		return nil
	}
	go undecided.Set(false)
	if err := AwaitSettled(t.Context(), undecided.View(), "ignored", watch); err != nil {
		t.Fatal(err)
	}
	for i, again := range more {
		if again != (i%2 == 0) {
			t.Errorf("response %d: each asks for another response: %t", i, again)
		}
	}
	broken := errors.New("the caller has left")
	if err := AwaitSettled(t.Context(), undecided.View(), "ignored", func(context.Context, func(*api.HealthResponse) (bool, error)) error { return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	undecided.Set(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AwaitSettled(ctx, undecided.View(), "ignored", watch); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
