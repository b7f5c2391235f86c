package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Scheduled etcd snapshots (Cluster.spec.etcd.snapshots). The orchestrator owns the files
// (orchestrator/etcd/snapshots.go); this file decides when to take them. upload.go uploads them.

const (
	// snapshotPollInterval is the interval at which the machine checks whether a snapshot is due.
	snapshotPollInterval = time.Minute
	// snapshotDelay is the time after boot in which the machine takes none: it has other work, and
	// its clock may be wrong.
	snapshotDelay = 10 * time.Minute
	// snapshotMaxBackoff is the longest delay after a failure: most problems last longer, and more
	// attempts would fill the events.
	snapshotMaxBackoff = time.Hour
)

// due reports whether a snapshot is due: the interval every after the last snapshot (0: never), and
// at once if there is none (the zero time). A last snapshot in the future is ignored: the clock was
// wrong.
func due(last, now time.Time, every time.Duration) bool {
	return every > 0 && (last.After(now) || now.Sub(last) >= every)
}

// runSnapshots takes scheduled snapshots until shutdown.
func (m *machine) runSnapshots() {
	tick := time.NewTicker(snapshotPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.checkSchedule(time.Now())
		case <-m.runCtx.Done():
			return
		}
	}
}

// snapshotSchedule is the state of runSnapshots.
type snapshotSchedule struct {
	sync.Mutex
	known   bool      // last is known
	last    time.Time // time of the newest snapshot
	retryAt time.Time // end of the delay after a failure
}

// waiting reports whether no snapshot is due, as far as that is known.
func (r *snapshotSchedule) waiting(now time.Time, every time.Duration) bool {
	r.Lock()
	defer r.Unlock()
	return every == 0 || r.known && !due(r.last, now, every) || now.Before(r.retryAt)
}

// setLast records the time of the newest snapshot; the zero time if there is none.
func (r *snapshotSchedule) setLast(at time.Time) {
	r.Lock()
	defer r.Unlock()
	r.known, r.last = true, at
}

// backOff delays the next attempt.
func (r *snapshotSchedule) backOff(until time.Time) {
	r.Lock()
	defer r.Unlock()
	r.retryAt = until
}

// wantedSnapshots returns the configured snapshots; false if this machine does not run etcd.
func (m *machine) wantedSnapshots() (config.Snapshots, bool) {
	in, _ := m.config.Get()
	if m.checkEtcd() != nil || in.config == nil || in.config.Cluster == nil {
		return config.Snapshots{}, false
	}
	return in.config.Cluster.Spec.Etcd.Snapshots, true
}

// checkSchedule takes a snapshot if it is due and no other operation blocks it.
func (m *machine) checkSchedule(now time.Time) {
	in, _ := m.config.Get()
	want, there := m.wantedSnapshots()
	every := time.Duration(want.Every)
	if !there || !in.trial.IsZero() || m.schedule.waiting(now, every) || now.Sub(m.started) < snapshotDelay {
		return
	}
	if going, _ := m.upgrade.Get(); going.Undecided() != nil || !m.writeMu.TryLock() {
		return
	}
	m.writeMu.Unlock() // an upgrade that starts from here on is allowed: it takes its own savepoint
	if !m.snapshotMu.TryLock() {
		return
	}
	defer m.snapshotMu.Unlock()
	if err := m.takeDueSnapshot(now, want); err != nil && m.runCtx.Err() == nil {
		rest := min(every, snapshotMaxBackoff)
		m.schedule.backOff(now.Add(rest))
		m.events.add("etcd", "failure", fmt.Sprintf("cannot take a scheduled snapshot, retry in %v: %v", rest, err))
	}
}

// takeDueSnapshot takes a snapshot if it is due, and wakes the upload.
func (m *machine) takeDueSnapshot(now time.Time, want config.Snapshots) error {
	ctx, cancel := limits.Within(context.Background(), m.runCtx, dataTimeout)
	defer cancel()
	stored, err := runCommand[[]nodespec.StoredSnapshot](ctx, m, paths.UserAPI, "list-snapshots", "")
	if err != nil {
		return err
	}
	last := time.Time{}
	if len(stored) > 0 {
		last = stored[0].At
	}
	if m.schedule.setLast(last); !due(last, now, time.Duration(want.Every)) {
		return nil
	}
	if _, err := m.takeSnapshot(ctx, want); err != nil {
		return err
	}
	m.uploader.wake()
	return nil
}

// takeSnapshot takes a stored snapshot.
func (m *machine) takeSnapshot(ctx context.Context, want config.Snapshots) (nodespec.StoredSnapshot, error) {
	request := nodespec.TakeSnapshotRequest{Most: want.Keep}
	for _, r := range want.Recipients {
		request.Recipients = append(request.Recipients, string(r))
	}
	made, err := runCommand[nodespec.StoredSnapshot](ctx, m, paths.UserAPI, "take-snapshot", request)
	if err != nil {
		return made, err
	}
	m.schedule.setLast(made.At)
	m.uploader.addPending()
	m.events.add("etcd", "operation", fmt.Sprintf("took the snapshot %s, %d KiB", made.Name, made.Size>>10))
	return made, nil
}
