package drain

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// startKeeper runs the keeper of Node "a", which maintains the conditions of the Node, until stop
// is called.
func startKeeper(t *testing.T, s *server) (stop func()) {
	stop, _ = startKeeperWith(t, s)
	return stop
}

// startKeeperWith does the same as startKeeper. It also returns the function down, which announces
// a shutdown of the machine.
func startKeeperWith(t *testing.T, s *server) (stop, down func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	signals, ended := make(chan os.Signal, 1), make(chan error, 1)
	k, err := newKeeper("a", s, component.NodesOf(ctx, s), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- k.run(ctx, signals, func(string) {}) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}, func() { signals <- syscall.SIGPWR }
}

// The method kubelet writes the condition Ready of the Node, as the kubelet does after a boot.
// reported is the time of the kubelet's report.
func (s *server) kubelet(t *testing.T, ready corev1.ConditionStatus, reported time.Time) {
	t.Helper()
	text := `{"status":{"conditions":[{"type":"Ready","status":"` + string(ready) + `","lastHeartbeatTime":"` + reported.UTC().Format(time.RFC3339) + `"}]}}`
	if _, err := s.CoreV1().Nodes().Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// TestMaintenance checks the conditions of a Node from a drain through a reboot until the node is
// ready again. A report of the kubelet from before the reboot must not end the maintenance.
func TestMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer("one")
		check := func(stage, want string) {
			t.Helper()
			synctest.Wait()
			if got := shown(s.node(t)); got != want {
				t.Errorf("%s: %s, want %s", stage, got, want)
			}
		}
		s.kubelet(t, corev1.ConditionTrue, time.Now())
		stop, down := startKeeperWith(t, s)
		if _, err := Drain(t.Context(), s, "a", nodespec.DrainRequest{Operation: "reboot", By: "dora", Timeout: time.Minute}, quiet); err != nil {
			t.Fatal(err)
		}
		check("after the drain", "cordoned MaintenancePlanned=True Drained=True")
		if c := condition(s.node(t), corev1.NodeDrained); c.Reason != "OrlopReboot" || c.Message != "1 pods were evicted" {
			t.Errorf("%+v", c)
		}
		down()
		check("during the shutdown", "cordoned Drained=True MaintenanceInProgress=True GracefulNodeShutdownInProgress=True")
		if c := condition(s.node(t), corev1.NodeMaintenanceInProgress); c.Reason != "OrlopReboot" {
			t.Errorf("%+v", c)
		}
		stop()

		time.Sleep(time.Minute) // the machine boots
		if err := retryUndo(t.Context(), s, "a", booted, ignore); err != nil {
			t.Fatal(err)
		}
		stop = startKeeper(t, s)
		defer stop()
		check("after the boot", "open MaintenanceInProgress=True")
		time.Sleep(period)
		check("after the boot, with the old report of the kubelet", "open MaintenanceInProgress=True")
		s.kubelet(t, corev1.ConditionFalse, time.Now())
		check("after a report that the node is not ready", "open MaintenanceInProgress=True")
		s.kubelet(t, corev1.ConditionTrue, time.Now())
		check("after a report that the node is ready", "open")
	})
}

// TestWrongClock checks that the maintenance also ends if the clock was far ahead at the boot, so
// that each report of the kubelet seems to be older than the boot.
func TestWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.kubelet(t, corev1.ConditionTrue, time.Now().Add(-time.Hour))
		n, err := getNode(t.Context(), s, "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := setConditions(t.Context(), s, n, leaving, cause{reasonOf("shutdown"), "x"}, time.Now()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		k, err := newKeeper("a", s, component.NodesOf(ctx, s), time.Now().Add(1000*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- k.run(ctx, nil, func(string) {}) }()
		synctest.Wait()
		s.kubelet(t, corev1.ConditionTrue, time.Now())
		synctest.Wait()
		if got := shown(s.node(t)); got != "open" {
			t.Errorf("the Node is %s, want open", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLeaveWithoutServer checks that a shutdown does not wait for an unavailable API server.
func TestLeaveWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		stop, down := startKeeperWith(t, s)
		s.set(true)
		down()
		before := time.Now()
		stop()
		if took := time.Since(before); took > leaveTimeout {
			t.Errorf("the shutdown waited for %v", took)
		}
	})
}

// TestForeignConditions checks that no stage changes a condition that another program has set to
// True. Each number is the count of conditions that the stage changes.
func TestForeignConditions(t *testing.T) {
	n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeMaintenancePlanned, Status: corev1.ConditionTrue, Reason: "FirmwareUpdate"},
		{Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionFalse, Reason: "FirmwareUpdate"},
	}}}
	for s, want := range map[stage]int{draining: 1, drained: 1, incomplete: 1, leaving: 2, undone: 0, booted: 0, ready: 1} {
		if got := conditionChanges(n, s, cause{reasonOf("upgrade"), "x"}, time.Now()); len(got) != want {
			t.Errorf("stage %s changes the conditions %v", s, got)
		}
	}
}

// TestConditionsOnce checks that a second pass of the same stage changes no condition.
func TestConditionsOnce(t *testing.T) {
	for s := range values {
		api := newServer()
		for i, want := range []bool{true, false} {
			n, err := getNode(t.Context(), api, "a")
			if err != nil {
				t.Fatal(err)
			}
			changes := conditionChanges(n, s, cause{reasonOf("upgrade"), "x"}, time.Unix(int64(i), 0))
			if got := len(changes) > 0; got != (want && (s != undone && s != booted && s != ready)) {
				t.Errorf("%s: pass %d: %v", s, i, changes)
			}
			if err := setConditions(t.Context(), api, n, s, cause{reasonOf("upgrade"), "x"}, time.Unix(int64(i), 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
