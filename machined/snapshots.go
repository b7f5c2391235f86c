package main

import (
	"context"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The snapshots of the cluster's data that the machine takes by itself (Cluster.spec.etcd.snapshots). The files are the orchestrator's
// (orchestrator/etcd/kept.go); here is when.

const (
	// snapshotLook is how often the machine looks whether one is due.
	snapshotLook = time.Minute
	// snapshotQuiet is how long after its start the machine takes none: it has other things to do, and its clock may be wrong.
	snapshotQuiet = 10 * time.Minute
	// snapshotRest is how long a failure rests at most: what is wrong is seldom over sooner, and the next one would fill the events.
	snapshotRest = time.Hour
)

// due tells whether a snapshot is to be taken, which is so often after the last one (0: never) and at once where there is none (the zero
// time). One of the future says nothing: the clock was wrong then.
func due(last, now time.Time, every time.Duration) bool {
	return every > 0 && (last.After(now) || now.Sub(last) >= every)
}

// keepSnapshots takes snapshots until the machine goes down.
func (m *machine) keepSnapshots() {
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	r := routine{m: m}
	for {
		select {
		case <-tick.C:
			r.look(time.Now())
		case <-m.working.Done():
			return
		}
	}
}

// routine is what is remembered from one look to the next.
type routine struct {
	m     *machine
	known bool      // whether last is
	last  time.Time // when the newest one was taken
	rests time.Time // until then, after a failure
}

// look takes a snapshot if one is due and nothing is in the way.
func (r *routine) look(now time.Time) {
	m := r.m
	in, _ := m.config.Get()
	if m.noData() != nil || in.config == nil || in.config.Cluster == nil || !in.trial.IsZero() {
		return
	}
	want := in.config.Cluster.Spec.Etcd.Snapshots
	every := time.Duration(want.Every)
	if every == 0 || r.known && !due(r.last, now, every) || now.Sub(m.started) < snapshotQuiet || now.Before(r.rests) {
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
	if err := r.take(now, every, want.Keep); err != nil && m.working.Err() == nil {
		rest := min(every, snapshotRest)
		r.rests = now.Add(rest)
		m.events.add("etcd", "failure", fmt.Sprintf("the machine keeps no new snapshot, and tries again in %v: %v", rest, err))
	}
}

// take takes one if it is due.
func (r *routine) take(now time.Time, every time.Duration, keep int) error {
	ctx, cancel := r.m.within(context.Background(), dataTime)
	defer cancel()
	if !r.known {
		kept, err := ask[[]nodespec.EtcdKept](ctx, r.m, paths.UserAPI, "kept-snapshots", nil)
		if err != nil {
			return err
		}
		if r.known = true; len(kept) > 0 {
			r.last = kept[0].At
		}
		if !due(r.last, now, every) {
			return nil
		}
	}
	made, err := ask[nodespec.EtcdKept](ctx, r.m, paths.UserAPI, "keep-snapshot", keep)
	if err != nil {
		return err
	}
	r.last = made.At
	r.m.events.add("etcd", "op", fmt.Sprintf("the machine keeps the snapshot %s, %d KiB", made.Name, made.Size>>10))
	return nil
}
