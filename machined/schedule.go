package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The snapshots of the cluster's data that the machine takes by itself
// (Cluster.spec.etcd.snapshots). The files are the orchestrator's (orchestrator/etcd/snapshots.go); here
// is when. They are sent elsewhere in sending.go.

const (
	// snapshotLook is how often the machine looks whether one is due.
	snapshotLook = time.Minute
	// snapshotQuiet is how long after its start the machine takes none: it has other things to do,
	// and its clock may be wrong.
	snapshotQuiet = 10 * time.Minute
	// snapshotRest is how long a failure rests at most: what is wrong is seldom over sooner, and
	// the next one would fill the events.
	snapshotRest = time.Hour
)

// due tells whether a snapshot is to be taken, which is so often after the last one (0: never) and
// at once where there is none (the zero time). One of the future says nothing: the clock was wrong
// then.
func due(last, now time.Time, every time.Duration) bool {
	return every > 0 && (last.After(now) || now.Sub(last) >= every)
}

// keepSnapshots takes snapshots until the machine goes down.
func (m *machine) keepSnapshots() {
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.lookForSnapshot(time.Now())
		case <-m.working.Done():
			return
		}
	}
}

// routine is what is remembered from one look to the next.
type routine struct {
	sync.Mutex
	known bool      // whether last is
	last  time.Time // when the newest one was taken
	rests time.Time // until then, after a failure
}

// waits tells whether nothing is to be done, as far as that is known.
func (r *routine) waits(now time.Time, every time.Duration) bool {
	r.Lock()
	defer r.Unlock()
	return every == 0 || r.known && !due(r.last, now, every) || now.Before(r.rests)
}

// taken notes when the newest one was taken; the zero time where there is none.
func (r *routine) taken(at time.Time) {
	r.Lock()
	defer r.Unlock()
	r.known, r.last = true, at
}

// rest has nothing done until then.
func (r *routine) rest(until time.Time) {
	r.Lock()
	defer r.Unlock()
	r.rests = until
}

// wantedSnapshots is what the configuration wants of the cluster's data that lie on this machine;
// false if they do not.
func (m *machine) wantedSnapshots() (config.Snapshots, bool) {
	in, _ := m.config.Get()
	if m.noData() != nil || in.config == nil || in.config.Cluster == nil {
		return config.Snapshots{}, false
	}
	return in.config.Cluster.Spec.Etcd.Snapshots, true
}

// lookForSnapshot takes a snapshot if one is due and nothing is in the way.
func (m *machine) lookForSnapshot(now time.Time) {
	in, _ := m.config.Get()
	want, there := m.wantedSnapshots()
	every := time.Duration(want.Every)
	if !there || !in.trial.IsZero() || m.routine.waits(now, every) || now.Sub(m.started) < snapshotQuiet {
		return
	}
	if going, _ := m.upgrade.Get(); going.Undecided() != nil || !m.writing.TryLock() {
		return
	}
	m.writing.Unlock() // one that begins from here on may: it saves the data beside
	if !m.moving.TryLock() {
		return
	}
	defer m.moving.Unlock()
	if err := m.takeSnapshot(now, want); err != nil && m.working.Err() == nil {
		rest := min(every, snapshotRest)
		m.routine.rest(now.Add(rest))
		m.events.add("etcd", "failure", fmt.Sprintf("the machine keeps no new snapshot, and tries again in %v: %v", rest, err))
	}
}

// takeSnapshot takes one if it is due, and has it sent.
func (m *machine) takeSnapshot(now time.Time, want config.Snapshots) error {
	ctx, cancel := m.within(context.Background(), dataTime)
	defer cancel()
	kept, err := ask[[]nodespec.StoredSnapshot](ctx, m, paths.UserAPI, "kept-snapshots", "")
	if err != nil {
		return err
	}
	last := time.Time{}
	if len(kept) > 0 {
		last = kept[0].At
	}
	if m.routine.taken(last); !due(last, now, time.Duration(want.Every)) {
		return nil
	}
	if _, err := m.keepSnapshot(ctx, want); err != nil {
		return err
	}
	m.sender.wake()
	return nil
}

// keepSnapshot takes one now.
func (m *machine) keepSnapshot(ctx context.Context, want config.Snapshots) (nodespec.StoredSnapshot, error) {
	order := nodespec.TakeSnapshotRequest{Most: want.Keep}
	for _, r := range want.Recipients {
		order.Recipients = append(order.Recipients, string(r))
	}
	made, err := ask[nodespec.StoredSnapshot](ctx, m, paths.UserAPI, "keep-snapshot", order)
	if err != nil {
		return made, err
	}
	m.routine.taken(made.At)
	m.sender.more()
	m.events.add("etcd", "op", fmt.Sprintf("the machine keeps the snapshot %s, %d KiB", made.Name, made.Size>>10))
	return made, nil
}
