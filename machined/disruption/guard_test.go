package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/disruption"
	"github.com/orlop-os/orlop/pkg/emulation"
)

// fakeCluster is a cluster of three control-plane machines.
type fakeCluster struct {
	control  disruption.ControlPlane
	ends     time.Time // end of the lease
	versions disruption.Versions
	level    disruption.Level
	broken   error // error of each command; nil: the commands succeed
	commands []string
}

func (f *fakeCluster) run(_ context.Context, uid uint32, command string, request any, _ ...*os.File) ([]byte, error) {
	f.commands = append(f.commands, fmt.Sprintf("%s as %d", command, uid))
	if f.broken != nil {
		return nil, f.broken
	}
	order, _ := request.(disruption.TurnRequest)
	switch command {
	case "take-turn":
		if f.control.Counts() && (order.Force || !f.control.Turn.OfAnother(order.Turn.Machine) || time.Now().After(f.ends)) {
			f.control.Turn, f.ends = order.Turn, time.Now().Add(order.Life)
		}
		return json.Marshal(f.control)
	case "return-turn":
		if f.control.Turn.Machine == order.Turn.Machine {
			f.control.Turn = disruption.Turn{}
		}
		return []byte("{}"), nil
	case "read-level":
		return json.Marshal(f.level)
	case "list-versions":
		return json.Marshal(f.versions)
	}
	return nil, errors.New("no such command")
}

// fixture is a machine of the cluster.
type fixture struct {
	*Guard
	cluster   *fakeCluster
	events    []string
	healthy   bool
	undecided bool
	stop      context.CancelFunc
}

func newFixture(t *testing.T, name string, cluster *fakeCluster) *fixture {
	f := &fixture{cluster: cluster, healthy: true}
	ctx, stop := context.WithCancel(t.Context())
	f.stop = stop
	f.Guard = New(Deps{
		Machine: func() Machine {
			return Machine{
				Machine: disruption.Machine{Name: name, ControlPlane: true, Kubernetes: "v1.36.3", Others: true}, Address: "10.0.0.11", InCluster: true,
			}
		},
		Command: cluster.run,
		File:    filepath.Join(t.TempDir(), "turn.json"),
		Healthy: func(ctx context.Context) error {
			for !f.healthy || f.undecided {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		Undecided: func() bool { return f.undecided },
		Stopping:  ctx,
		Event:     func(kind, message string) { f.events = append(f.events, kind+": "+message) },
	})
	t.Cleanup(func() { // before the directory is removed, because upkeep may write the turn
		stop()
		f.mu.Lock()
		defer f.mu.Unlock()
	})
	return f
}

// boot returns the machine as it is after its next boot.
func (f *fixture) boot(t *testing.T) *fixture {
	next := newFixture(t, f.deps.Machine().Name, f.cluster)
	next.deps.File = f.deps.File
	f.stop()
	next.Load()
	return next
}

func three() *fakeCluster {
	return &fakeCluster{control: disruption.ControlPlane{Members: []disruption.Member{{Name: "a", Own: true}, {Name: "b"}, {Name: "c"}}}}
}

var reboot = disruption.Request{Operation: disruption.Reboot, By: "dora"}

// TestTwoOperators reboots two machines, as two operators. The second operator can proceed only
// after the machine of the first operator is healthy again.
func TestTwoOperators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a, b := newFixture(t, "a", cluster), newFixture(t, "b", cluster)
		defer b.stop()
		if _, err := a.Permit(t.Context(), reboot); err != nil {
			t.Fatal(err)
		}
		if now, _ := a.State().Get(); now.Machine != "a" || !now.Check().Ok {
			t.Errorf("the turn of machine a is %+v", now)
		}
		_, err := b.Permit(t.Context(), disruption.Request{Operation: disruption.Shutdown, By: "eve"})
		if err == nil || !strings.Contains(err.Error(), "shutdown refused: control-plane machine a reboots since 00:00:00Z, asked by dora") {
			t.Errorf("the second operator: %v", err)
		}
		a = a.boot(t)
		defer a.stop()
		if now, _ := a.State().Get(); now.Check().Ok || !strings.Contains(now.Check().Detail, "returns it when it is healthy") {
			t.Errorf("the health after the boot: %v", now.Check())
		}
		a.healthy = false
		go a.Run(t.Context())
		time.Sleep(time.Minute)
		if _, err := b.Permit(t.Context(), reboot); err == nil {
			t.Error("permitted before the first machine is healthy")
		}
		a.healthy = true
		time.Sleep(time.Minute)
		if now, _ := a.State().Get(); now.Check() != nil {
			t.Errorf("the turn of machine a is %+v", now)
		}
		if _, err := b.Permit(t.Context(), reboot); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(a.deps.File); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the record of the turn still exists: %v", err)
		}
	})
}

// TestCrash checks that the turn of a machine that does not become healthy ends, and that the
// machine itself then reports no turn. It also checks that a version on trial renews its turn.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a := newFixture(t, "a", cluster)
		if _, err := a.Permit(t.Context(), disruption.Request{Operation: disruption.Upgrade, By: "dora"}); err != nil {
			t.Fatal(err)
		}
		a = a.boot(t)
		defer a.stop()
		a.healthy, a.undecided = false, true
		go a.Run(t.Context())
		time.Sleep(3 * disruption.TurnLife)
		if cluster.control.Turn.Ends.Before(time.Now()) {
			t.Errorf("the turn of a version on trial has ended: %+v", cluster.control.Turn)
		}
		a.undecided = false
		time.Sleep(3 * disruption.TurnLife)
		if !cluster.control.Turn.Ends.Before(time.Now()) {
			t.Errorf("a machine that is not healthy renews its turn: %+v", cluster.control.Turn)
		}
		if now, _ := a.State().Get(); now.Check() != nil {
			t.Errorf("the turn has ended, and the machine reports %v", now.Check())
		}
	})
}

// TestLongOperation checks that a machine renews its turn while it writes an upgrade and drains its
// node, and returns the turn if the operation fails.
func TestLongOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a := newFixture(t, "a", cluster)
		defer a.stop()
		upgrade := disruption.Request{Operation: disruption.Upgrade, By: "dora"}
		giveBack, err := a.Permit(t.Context(), upgrade)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * disruption.TurnLife)
		if !cluster.control.Turn.Ends.After(time.Now()) {
			t.Errorf("the turn has ended: %+v", cluster.control.Turn)
		}
		// A second operation that is refused does not return the turn of the first operation.
		cluster.control.Members[2].Problem = "no route to host"
		if _, err := a.Permit(t.Context(), reboot); err == nil {
			t.Error("permitted without a quorum")
		}
		if err := a.Confirm(t.Context(), upgrade); err == nil || !strings.Contains(err.Error(), "upgrade refused: etcd would lose its quorum") {
			t.Errorf("the second check: %v", err)
		}
		if cluster.control.Turn.Machine != "a" {
			t.Errorf("the turn is %+v", cluster.control.Turn)
		}
		giveBack()
		if cluster.control.Turn != (disruption.Turn{}) {
			t.Errorf("the turn was not returned: %+v", cluster.control.Turn)
		}
		// A rollback to a version that cannot return the turn gets a short turn, which is renewed
		// during the drain.
		cluster.control.Members[2].Problem = ""
		giveBack, err = a.Permit(t.Context(), disruption.Request{Operation: disruption.Rollback, By: "dora", Forgets: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30*time.Minute + time.Second)
		if left := time.Until(cluster.control.Turn.Ends); left <= 0 || left > 2*time.Minute {
			t.Errorf("the short turn ends in %v", left)
		}
		giveBack()
		cluster.control.Members[2].Problem = "no route to host"
		// A rejected operation takes no turn.
		if _, err := a.Permit(t.Context(), reboot); err == nil || cluster.control.Turn != (disruption.Turn{}) {
			t.Errorf("Permit returns %v, and the turn is %+v", err, cluster.control.Turn)
		}
	})
}

// TestOperationsTogether checks that a machine retains its turn while an operation needs it, even
// if another operation ends or the machine returns the turn of an earlier boot.
func TestOperationsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a := newFixture(t, "a", cluster)
		first, err := a.Permit(t.Context(), disruption.Request{Operation: disruption.Reset, By: "dora"})
		if err != nil {
			t.Fatal(err)
		}
		second, err := a.Permit(t.Context(), reboot)
		if err != nil {
			t.Fatal(err)
		}
		first()
		first() // again, as a deferred call
		if cluster.control.Turn.Machine != "a" {
			t.Errorf("the reset returned the turn of the reboot: %+v", cluster.control.Turn)
		}
		second()
		if cluster.control.Turn.Machine != "" || a.Held() {
			t.Errorf("the turn was not returned: %+v", cluster.control.Turn)
		}

		if _, err = a.Permit(t.Context(), reboot); err != nil {
			t.Fatal(err)
		}
		a = a.boot(t)
		defer a.stop()
		a.healthy = false
		go a.Run(t.Context())
		time.Sleep(time.Minute)
		drained, err := a.Permit(t.Context(), disruption.Request{Operation: disruption.Reset, By: "eve"})
		if err != nil {
			t.Fatal(err)
		}
		a.healthy = true
		time.Sleep(time.Hour)
		if now := a.state(); cluster.control.Turn.Machine != "a" || !cluster.ends.After(time.Now()) || !now.Check().Ok {
			t.Errorf("the turn of the reset was returned when the machine became healthy: %+v, %v", cluster.control.Turn, now.Check())
		}
		drained()
		if cluster.control.Turn.Machine != "" || len(a.events) > 0 {
			t.Errorf("the turn was not returned: %+v, with the events %v", cluster.control.Turn, a.events)
		}
	})
}

// TestReturnFails checks that a machine that cannot return its turn reports the problem once and
// returns the turn later, and that it forgets the turn after the end of the turn.
func TestReturnFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for outage, want := range map[time.Duration]string{time.Minute: "", time.Hour: "a"} {
			cluster := three()
			a := newFixture(t, "a", cluster)
			giveBack, err := a.Permit(t.Context(), reboot)
			if err != nil {
				t.Fatal(err)
			}
			cluster.broken = errors.New("no leader")
			giveBack()
			if !a.Held() {
				t.Error("the machine has forgotten a turn that it has not returned")
			}
			time.Sleep(outage)
			cluster.broken = nil
			time.Sleep(time.Minute)
			if cluster.control.Turn.Machine != want || a.Held() || !slices.Equal(a.events, []string{"failure: cannot return the turn: no leader"}) {
				t.Errorf("after an outage of %v: the turn is %+v, with the events %v", outage, cluster.control.Turn, a.events)
			}
			a.stop()
		}
	})
}

// TestLostTurn checks that a machine that lost its turn during a drain requests the turn again
// before it shuts down, and does not shut down if the request is rejected.
func TestLostTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a, b := newFixture(t, "a", cluster), newFixture(t, "b", cluster)
		defer a.stop()
		defer b.stop()
		reset := disruption.Request{Operation: disruption.Reset, By: "dora"}
		giveBack, err := a.Permit(t.Context(), reset)
		if err != nil {
			t.Fatal(err)
		}
		cluster.broken = errors.New("no route to host")
		time.Sleep(2 * disruption.TurnLife)
		cluster.broken = nil
		if _, err := b.Permit(t.Context(), reboot); err != nil {
			t.Fatal(err)
		}
		if err := a.Confirm(t.Context(), reset); err == nil || !strings.Contains(err.Error(), "reset refused: control-plane machine b reboots since") {
			t.Errorf("after the loss: %v", err)
		}
		time.Sleep(disruption.TurnLife)
		if a.Held() || !slices.ContainsFunc(a.events, func(e string) bool {
			return strings.HasPrefix(e, "failure: this machine has lost its turn: control-plane machine b")
		}) {
			t.Errorf("the turn of machine a is %+v, with the events %v", a.state(), a.events)
		}
		giveBack()
		if cluster.control.Turn.Machine != "b" {
			t.Errorf("a returned the turn of b: %+v", cluster.control.Turn)
		}
	})
}

// TestDisconnected checks that an operation takes no turn, and does not happen, if its caller
// disconnects during the request for the turn.
func TestDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		a := newFixture(t, "a", cluster)
		defer a.stop()
		ctx, disconnect := context.WithCancel(t.Context())
		a.deps.Command = func(ctx context.Context, uid uint32, command string, request any, files ...*os.File) ([]byte, error) {
			disconnect()
			if ctx.Err() != nil {
				t.Error("the command ends when the caller disconnects")
			}
			return cluster.run(ctx, uid, command, request, files...)
		}
		for range 2 { // the second call begins after the caller has disconnected
			if _, err := a.Permit(ctx, reboot); !errors.Is(err, context.Canceled) || a.Held() || cluster.control.Turn.Machine != "" {
				t.Errorf("Permit returns %v, and the turn is %+v", err, cluster.control.Turn)
			}
		}
		if want := []string{"take-turn as 101", "return-turn as 101"}; !slices.Equal(cluster.commands, want) {
			t.Errorf("the commands are %q", cluster.commands)
		}
	})
}

// TestWithoutState checks that a machine can be rebooted if its STATE cannot be written.
func TestWithoutState(t *testing.T) {
	cluster := three()
	a := newFixture(t, "a", cluster)
	defer a.stop()
	a.deps.File = filepath.Join(t.TempDir(), "missing", "turn.json")
	if _, err := a.Permit(t.Context(), reboot); err != nil || cluster.control.Turn.Machine != "a" {
		t.Errorf("Permit returns %v, and the turn is %+v", err, cluster.control.Turn)
	}
	if len(a.events) != 1 || !strings.Contains(a.events[0], "cannot store the turn") || !strings.HasSuffix(a.events[0], "the turn ends by itself") {
		t.Errorf("the events are %q", a.events)
	}
}

// TestForce checks that a rejected operation can be forced, which adds an event with the reason of
// the rejection.
func TestForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := three()
		cluster.control.Members[1].Problem = "no route to host"
		a := newFixture(t, "a", cluster)
		defer a.stop()
		if _, err := a.Permit(t.Context(), reboot); err == nil || len(a.events) != 0 {
			t.Errorf("Permit without force returns %v, with the events %v", err, a.events)
		}
		forced := reboot
		forced.Force = true
		if _, err := a.Permit(t.Context(), forced); err != nil {
			t.Error(err)
		}
		want := "forced: reboot forced by dora, although: etcd would lose its quorum"
		if len(a.events) != 1 || !strings.HasPrefix(a.events[0], want) || cluster.control.Turn.Machine != "a" {
			t.Errorf("the events are %v, and the turn is %+v", a.events, cluster.control.Turn)
		}
		// The commands for the cluster fail.
		a.giveBack()
		cluster.broken = errors.New("the program does not start")
		if _, err := a.Permit(t.Context(), reboot); err == nil || !strings.Contains(err.Error(), "unknown whether the other control-plane machines need this machine: the program does not start") {
			t.Error(err)
		}
		if _, err := a.Permit(t.Context(), forced); err != nil {
			t.Error(err)
		}
	})
}

// TestCommands checks which commands run for an operation. No command runs on a machine that no
// other machine needs.
func TestCommands(t *testing.T) {
	other := disruption.Request{Operation: disruption.Upgrade, Kubernetes: "v1.37.2"}
	for name, test := range map[string]struct {
		machine Machine
		request disruption.Request
		want    []string
	}{
		"not in a cluster":                      {Machine{}, other, nil},
		"a worker reboots":                      {Machine{InCluster: true}, reboot, nil},
		"a worker is upgraded":                  {Machine{InCluster: true, Machine: disruption.Machine{Kubernetes: "v1.36.3"}}, other, []string{"list-versions as 0"}},
		"the only control-plane machine":        {Machine{InCluster: true, Machine: disruption.Machine{ControlPlane: true}}, reboot, nil},
		"one of several control-plane machines": {Machine{InCluster: true, Machine: disruption.Machine{ControlPlane: true, Others: true}}, reboot, []string{"take-turn as 101"}},
		"a new minor version":                   {Machine{InCluster: true, Machine: disruption.Machine{ControlPlane: true, Others: true}}, other, []string{"list-versions as 102", "take-turn as 101", "read-level as 101", "return-turn as 101"}},
		"a rollback to 0.1.0":                   {Machine{InCluster: true, Machine: disruption.Machine{ControlPlane: true, Kubernetes: "v1.37.2"}}, disruption.Request{Operation: disruption.Rollback, Forgets: true}, []string{"read-level as 101"}},
		"a reset of DATA":                       {Machine{InCluster: true, Machine: disruption.Machine{ControlPlane: true}}, disruption.Request{Operation: disruption.ResetData}, []string{"take-turn as 101"}},
		"the same minor version":                {Machine{InCluster: true, Machine: disruption.Machine{Kubernetes: "v1.37.1"}}, other, nil},
		"an unknown running version":            {Machine{InCluster: true}, other, []string{"list-versions as 0"}},
	} {
		cluster := three()
		a := newFixture(t, "a", cluster)
		a.deps.Machine = func() Machine { return test.machine }
		_, _ = a.Permit(t.Context(), test.request)
		a.stop()
		if !slices.Equal(cluster.commands, test.want) {
			t.Errorf("%s: the commands are %q", name, cluster.commands)
		}
	}
}

// TestLevel checks that a rollback below the level of the cluster is rejected, even if it is
// forced, and returns its turn. Before the level is raised, the rollback is permitted.
func TestLevel(t *testing.T) {
	cluster := three()
	a := newFixture(t, "a", cluster)
	defer a.stop()
	a.deps.Machine = func() Machine {
		return Machine{InCluster: true, Machine: disruption.Machine{Name: "a", ControlPlane: true, Kubernetes: "v1.37.2", Others: true}}
	}
	rollback := disruption.Request{Operation: disruption.Rollback, By: "dora", Forgets: true}
	cluster.level.Level = emulation.Minor{Major: 1, Minor: 36}
	giveBack, err := a.Permit(t.Context(), rollback)
	if err != nil {
		t.Fatal(err)
	}
	giveBack()
	cluster.level.Level = emulation.Minor{Major: 1, Minor: 37}
	for _, force := range []bool{false, true} {
		rollback.Force = force
		_, err := a.Permit(t.Context(), rollback)
		if err == nil || !strings.Contains(err.Error(), "rollback refused: the level of the cluster is 1.37, and version 1.36 cannot read its data") || strings.Contains(err.Error(), "--force") {
			t.Errorf("force %t: %v", force, err)
		}
		if a.Held() || cluster.control.Turn.Machine != "" {
			t.Errorf("force %t: the machine has the turn %+v", force, cluster.control.Turn)
		}
	}
	if len(a.events) > 0 {
		t.Errorf("a rejected rollback causes the events %q", a.events)
	}
	// A machine that is alone in its cluster can be forced to roll back, because its savepoint
	// remains.
	a.deps.Machine = func() Machine {
		return Machine{InCluster: true, Machine: disruption.Machine{Name: "a", ControlPlane: true, Kubernetes: "v1.37.2"}}
	}
	rollback.Force = false
	if _, err := a.Permit(t.Context(), rollback); err == nil || !strings.Contains(err.Error(), "restore the savepoint from before the upgrade with --force") {
		t.Error(err)
	}
	rollback.Force = true
	if _, err := a.Permit(t.Context(), rollback); err != nil || len(a.events) != 1 || !strings.Contains(a.events[0], "forced") {
		t.Errorf("a forced rollback: %v, with the events %q", err, a.events)
	}
}

// TestDamagedRecord checks that a machine with an unreadable record of the turn reports the error,
// and reports no turn.
func TestDamagedRecord(t *testing.T) {
	a := newFixture(t, "a", three())
	defer a.stop()
	if err := os.WriteFile(a.deps.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Load()
	if now, _ := a.State().Get(); now.Check() != nil || len(a.events) != 1 || !strings.Contains(a.events[0], "cannot read the turn") {
		t.Errorf("the turn is %+v, with the events %v", now, a.events)
	}
}
