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

// The snapshots that the machine keeps, and that are encrypted, go to
// Cluster.spec.etcd.snapshots.target. The orchestrator reads and sends them, as its own user
// (orchestrator/etcd/upload.go); here is when.

const (
	// sendTime bounds the sending of one: all of 4 GiB over a slow line. One that does not move at
	// all ends sooner.
	sendTime = time.Hour
	// firstRest is how long it rests after a failure; each time twice as long, up to snapshotRest.
	firstRest = 5 * time.Minute
)

// sending is how far it is. All but its methods' arguments is in it, and no clock.
type sending struct {
	target  nodespec.EtcdTarget // what was tried last; a change of it begins anew
	pending bool                // there may be something to send
	failed  int                 // tries in a row
	rests   time.Time           // until then, after a failure
	problem string              // why the last try failed; empty: it did not
}

// next tells whether something is to be sent to a target now.
func (s *sending) next(target nodespec.EtcdTarget, now time.Time) bool {
	if target != s.target {
		*s = sending{target: target, pending: true}
	}
	return target.Place != "" && s.pending && !now.Before(s.rests)
}

// begin notes that one is being sent. What comes from now on is not counted in what is left.
func (s *sending) begin() { s.pending = false }

// sent notes that so many are left after one was sent, or that there was none to send.
func (s *sending) sent(left int) {
	s.pending, s.failed, s.rests, s.problem = s.pending || left > 0, 0, time.Time{}, ""
}

// failure notes why nothing was sent, and says for how long it rests.
func (s *sending) failure(err error, now time.Time) time.Duration {
	rest := min(firstRest<<min(s.failed, 8), snapshotRest)
	s.pending, s.failed, s.rests, s.problem = true, s.failed+1, now.Add(rest), err.Error()
	return rest
}

// sender sends one at a time.
type sender struct {
	busy sync.Mutex    // held by who sends
	woke chan struct{} // holds one if it is to look at once

	mu    sync.Mutex
	state sending
}

// wake has it look at once.
func (s *sender) wake() {
	select {
	case s.woke <- struct{}{}:
	default:
	}
}

// more notes that there is one more. A rest goes on.
func (s *sender) more() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.pending = true
}

// problem is why the last try to send something to a place failed; empty: it did not.
func (s *sender) problem(place string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.target.Place != place {
		return ""
	}
	return s.state.problem
}

// snapshotTarget is where the configuration wants snapshots to be sent; zero: nowhere.
func snapshotTarget(want config.Snapshots) nodespec.EtcdTarget {
	t := want.Target
	if t == nil || len(want.Recipients) == 0 {
		return nodespec.EtcdTarget{}
	}
	return nodespec.EtcdTarget{
		Place: t.URL(), Endpoint: t.Endpoint.String(), Region: t.Region, Bucket: t.Bucket, Prefix: t.Prefix,
		AccessKey: t.AccessKey.Reveal(), SecretKey: t.SecretKey.Reveal(), CA: t.CA.PEM(),
	}
}

// sendSnapshots sends snapshots until the machine goes down.
func (m *machine) sendSnapshots() {
	tick := time.NewTicker(snapshotLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if time.Since(m.started) < snapshotQuiet {
				continue
			}
		case <-m.sender.woke:
		case <-m.working.Done():
			return
		}
		for m.sendDue(time.Now()) {
		}
	}
}

// sendDue sends one if that is due, and tells whether there is more to do at once.
func (m *machine) sendDue(now time.Time) bool {
	want, there := m.wantedSnapshots()
	if !there || !m.sender.busy.TryLock() {
		return false
	}
	defer m.sender.busy.Unlock()
	m.sender.mu.Lock()
	target := snapshotTarget(want)
	next := m.sender.state.next(target, now)
	m.sender.mu.Unlock()
	if !next {
		return false
	}
	left, err := m.sendSnapshot(target)
	return err == nil && left > 0
}

// sendSnapshot sends the newest that the target does not have, and returns how many are left then.
// Its caller is the one who sends.
func (m *machine) sendSnapshot(target nodespec.EtcdTarget) (left int, err error) {
	ctx, cancel := m.within(context.Background(), sendTime)
	defer cancel()
	m.sender.mu.Lock()
	m.sender.state.begin()
	m.sender.mu.Unlock()
	done, err := ask[nodespec.UploadResult](ctx, m, paths.UserAPI, "send-snapshot", target)
	m.sender.mu.Lock()
	defer m.sender.mu.Unlock()
	switch {
	case err == nil:
		m.sender.state.sent(done.Remaining)
		if done.Sent.Name != "" {
			m.events.add("etcd", "op", fmt.Sprintf("the snapshot %s was sent to %s", done.Sent.Name, target.Place))
		}
	case m.working.Err() == nil:
		rest := m.sender.state.failure(err, time.Now())
		m.events.add("etcd", "failure", fmt.Sprintf("a snapshot was not sent to %s, and is tried again in %v: %v", target.Place, rest, err))
	}
	return done.Remaining, err
}

// sendNow sends the newest snapshot, whether a rest is over or not, and says why it was not sent.
func (m *machine) sendNow(want config.Snapshots) (problem string) {
	target := snapshotTarget(want)
	if target.Place == "" {
		return ""
	}
	if !m.sender.busy.TryLock() {
		return "another one is being sent; this one is the next"
	}
	defer m.sender.wake() // for what is left; when nobody sends any more
	defer m.sender.busy.Unlock()
	m.sender.mu.Lock()
	m.sender.state.next(target, time.Now()) // it may be another target
	m.sender.mu.Unlock()
	if _, err := m.sendSnapshot(target); err != nil {
		return err.Error()
	}
	return ""
}
