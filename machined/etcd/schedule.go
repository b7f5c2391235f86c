package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
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
	// snapshotDelay is the time after boot in which the machine takes no snapshot: it has other
	// work, and its clock may be wrong.
	snapshotDelay = 10 * time.Minute
	// snapshotMaxBackoff is the longest delay after a failure: most problems last longer, and more
	// attempts would fill the events.
	snapshotMaxBackoff = time.Hour
)

// due reports whether a snapshot is due: the interval every has passed since the time last of the
// last snapshot, or no snapshot exists (last is the zero time). If every is 0, no snapshot is due.
// A time last in the future is ignored, because the clock was wrong.
func due(last, now time.Time, every time.Duration) bool {
	return every > 0 && (last.After(now) || now.Sub(last) >= every)
}

// RunSchedule takes scheduled snapshots until shutdown.
func (k *Manager) RunSchedule() {
	tick := time.NewTicker(snapshotPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.checkSchedule(time.Now())
		case <-k.deps.Stopping.Done():
			return
		}
	}
}

// snapshotSchedule is the state of RunSchedule.
type snapshotSchedule struct {
	sync.Mutex
	known   bool      // last is known
	last    time.Time // time of the newest snapshot
	retryAt time.Time // end of the delay after a failure
}

// waiting reports whether RunSchedule has nothing to do at present: snapshots are disabled (every
// is 0), the last snapshot is recent enough, or the delay after a failure has not ended.
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
func (k *Manager) wantedSnapshots() (config.Snapshots, bool) {
	in, _ := k.deps.Config.Get()
	if k.checkConfig(in.Config) != nil {
		return config.Snapshots{}, false
	}
	return in.Config.Cluster.Spec.Etcd.Snapshots, true
}

// checkSchedule takes a snapshot if it is due and no other operation blocks it.
func (k *Manager) checkSchedule(now time.Time) {
	in, _ := k.deps.Config.Get()
	want, there := k.wantedSnapshots()
	every := time.Duration(want.Every)
	if !there || in.OnTrial || k.schedule.waiting(now, every) || now.Sub(k.deps.Started) < snapshotDelay {
		return
	}
	if k.deps.UpgradePending() != nil {
		return
	}
	unlock, ok := k.deps.LockUpgrade()
	if !ok {
		return
	}
	unlock() // an upgrade that starts from here on is allowed: it takes its own savepoint
	if !k.snapshotMu.TryLock() {
		return
	}
	defer k.snapshotMu.Unlock()
	if err := k.takeDueSnapshot(now, want); err != nil && k.deps.Stopping.Err() == nil {
		rest := min(every, snapshotMaxBackoff)
		k.schedule.backOff(now.Add(rest))
		k.deps.Event("etcd", "failure", fmt.Sprintf("cannot take a scheduled snapshot, retry in %v: %v", rest, err))
	}
}

// takeDueSnapshot takes a snapshot if it is due, and wakes the upload.
func (k *Manager) takeDueSnapshot(now time.Time, want config.Snapshots) error {
	ctx, cancel := limits.Within(context.Background(), k.deps.Stopping, dataTimeout)
	defer cancel()
	stored, err := listSnapshots(ctx, k.deps.Command, "")
	if err != nil {
		return err
	}
	last := time.Time{}
	if len(stored) > 0 {
		last = stored[0].At.AsTime()
	}
	if k.schedule.setLast(last); !due(last, now, time.Duration(want.Every)) {
		return nil
	}
	if _, err := k.takeSnapshot(ctx, want); err != nil {
		return err
	}
	k.uploader.wakeup.Wake()
	return nil
}

// takeSnapshot takes a stored snapshot.
func (k *Manager) takeSnapshot(ctx context.Context, want config.Snapshots) (*api.EtcdStoredSnapshot, error) {
	request := nodespec.TakeSnapshotRequest{Most: want.Keep}
	for _, r := range want.Recipients {
		request.Recipients = append(request.Recipients, string(r))
	}
	made := &api.EtcdStoredSnapshot{}
	if err := nodespec.RunInto(ctx, k.deps.Command, paths.UserAPI, "take-snapshot", request, made); err != nil {
		return nil, err
	}
	k.schedule.setLast(made.At.AsTime())
	k.uploader.addPending()
	k.deps.Event("etcd", "operation", fmt.Sprintf("took the snapshot %s, %d KiB", made.Name, made.Size>>10))
	return made, nil
}
