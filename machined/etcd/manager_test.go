package etcd

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestWithoutEtcd checks that a machine without etcd rejects every operation, and that it can leave
// the cluster at any time.
func TestWithoutEtcd(t *testing.T) {
	for want, d := range map[string]Deps{
		"etcd: it runs from memory": {NotInstalled: "it runs from memory", Config: cell.New(Config{Config: configured()}).View()},
		"etcd: does not run on this machine; ask a control-plane machine": {
			Config: cell.New(Config{Config: config.New("w1", config.RoleWorker)}).View(),
		},
	} {
		k := New(d)
		for name, do := range map[string]func() error{
			"SendSnapshot":  func() error { return k.SendSnapshot(t.Context(), "", "a", nil) },
			"ListSnapshots": func() error { _, err := k.ListSnapshots(t.Context()); return err },
			"TakeSnapshot":  func() error { _, err := k.TakeSnapshot(); return err },
			"Restore":       func() error { _, err := k.Restore(&api.EtcdRestoreRequest{}, nil, "a"); return err },
			"Read":          func() error { return k.Read(t.Context(), "data-status", nil, &api.EtcdStatusResponse{}) },
			"Change":        func() error { return k.Change(t.Context(), "disarm-data", nil, &api.EtcdDisarmResponse{}, nil) },
			"RemoveMember":  func() error { _, err := k.RemoveMember("1", "a"); return err },
			"Recover":       func() error { _, err := k.Recover("a"); return err },
			"Rejoin":        func() error { return k.Rejoin("a") },
		} {
			if err := do(); status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != want {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if err := k.Leave("a"); err != nil {
			t.Error(err)
		}
		if _, wanted := k.wantedSnapshots(); wanted {
			t.Error("a machine without etcd takes snapshots")
		}
	}
}

// TestSchedule checks that a scheduled snapshot is taken when it is due, but not soon after the
// boot, during the trial of a configuration, or during an upgrade.
func TestSchedule(t *testing.T) {
	c := configured()
	c.Cluster.Spec.Etcd.Snapshots.Every = config.Duration(time.Hour)
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	now := cell.New(Config{Config: c})
	var ran []string
	locked, pending := false, error(nil)
	k := New(Deps{
		Config: now.View(), Started: start, Stopping: t.Context(), Event: func(string, string, string) {},
		LockUpgrade:    func() (func(), bool) { return func() {}, !locked },
		UpgradePending: func() error { return pending },
		Command: func(_ context.Context, _ uint32, command string, _ any, _ ...*os.File) ([]byte, error) {
			ran = append(ran, command)
			if command == "list-snapshots" {
				return []byte("{}"), nil
			}
			return []byte(`{"at": "2026-11-22T12:30:00Z"}`), nil
		},
	})
	both := []string{"list-snapshots", "take-snapshot"}
	for _, step := range []struct {
		name   string
		after  time.Duration
		change func()
		want   []string
	}{
		{"soon after the boot", snapshotDelay - time.Second, func() {}, nil},
		{"a configuration on trial", 30 * time.Minute, func() { now.Set(Config{Config: c, OnTrial: true}) }, nil},
		{"a pending upgrade", 30 * time.Minute, func() { now.Set(Config{Config: c}); pending = errors.New("on trial") }, nil},
		{"a system is being written", 30 * time.Minute, func() { pending, locked = nil, true }, nil},
		{"due", 30 * time.Minute, func() { locked = false }, both},
		{"not due yet", 89 * time.Minute, func() {}, nil},
		{"due again", 90 * time.Minute, func() {}, both},
		{"not configured", 200 * time.Minute, func() { now.Set(Config{}) }, nil},
	} {
		ran = nil
		step.change()
		if k.checkSchedule(start.Add(step.after)); !slices.Equal(ran, step.want) {
			t.Errorf("%s: ran %v, want %v", step.name, ran, step.want)
		}
	}
}

// TestRestoreRejected checks that a restore is rejected during an upgrade or another snapshot, and
// that a snapshot is rejected if its size is invalid or DATA has no space for it.
func TestRestoreRejected(t *testing.T) {
	locked, pending := true, error(nil)
	k := New(Deps{
		Config: cell.New(Config{Config: configured()}).View(), Stopping: t.Context(),
		LockUpgrade:    func() (func(), bool) { return func() {}, !locked },
		UpgradePending: func() error { return pending },
		FreeSpace:      func() (int64, error) { return snapshotReserve + 1, nil },
	})
	for _, step := range []struct {
		change func()
		r      *api.EtcdRestoreRequest
		code   codes.Code
		want   string
	}{
		{func() {}, &api.EtcdRestoreRequest{Undo: true, Stored: "a"}, codes.InvalidArgument, "a stored snapshot and an undo are both requested"},
		{func() {}, &api.EtcdRestoreRequest{}, codes.Aborted, "an upgrade is being received or written"},
		{func() { locked, pending = false, errors.New("on trial") }, &api.EtcdRestoreRequest{}, codes.FailedPrecondition, "nothing was changed: on trial"},
		{func() { pending = nil; k.snapshotMu.Lock() }, &api.EtcdRestoreRequest{}, codes.Aborted, "another snapshot is being taken"},
	} {
		step.change()
		if _, err := k.Restore(step.r, nil, "a"); status.Code(err) != step.code || !strings.Contains(status.Convert(err).Message(), step.want) {
			t.Errorf("%v: %v; want %q", step.r, err, step.want)
		}
	}
	for size, code := range map[int64]codes.Code{0: codes.InvalidArgument, maxSnapshot + 1: codes.InvalidArgument, 1: codes.FailedPrecondition} {
		if err := k.checkSnapshotSpace(size); status.Code(err) != code {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
