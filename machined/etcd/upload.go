package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The upload of encrypted stored snapshots to Cluster.spec.etcd.snapshots.target. The orchestrator
// reads and uploads them, as its own user (orchestrator/etcd/upload.go); this file decides when.

const (
	// uploadTimeout bounds the upload of a snapshot: 4 GiB over a slow line. A stalled upload ends
	// sooner.
	uploadTimeout = time.Hour
	// uploadMinBackoff is the first delay after a failure; it doubles each time, up to
	// snapshotMaxBackoff.
	uploadMinBackoff = 5 * time.Minute
)

// uploadState is the state of the upload. Its methods get the time as an argument.
type uploadState struct {
	target   nodespec.EtcdTarget // last target; a change resets the state
	pending  bool                // a snapshot may be pending
	failures int                 // consecutive failures
	retryAt  time.Time           // end of the delay after a failure
	problem  string              // error of the last attempt; empty if it succeeded
}

// next reports whether an upload to a target is due.
func (s *uploadState) next(target nodespec.EtcdTarget, now time.Time) bool {
	if target != s.target {
		*s = uploadState{target: target, pending: true}
	}
	return target.Place != "" && s.pending && !now.Before(s.retryAt)
}

// begin records the start of an upload. A snapshot that is taken later sets pending again.
func (s *uploadState) begin() { s.pending = false }

// uploaded records a success with the number of remaining snapshots.
func (s *uploadState) uploaded(left int) {
	s.pending, s.failures, s.retryAt, s.problem = s.pending || left > 0, 0, time.Time{}, ""
}

// failure records an error and returns the delay until the next attempt.
func (s *uploadState) failure(err error, now time.Time) time.Duration {
	s.failures++
	rest := backoff.Backoff{Min: uploadMinBackoff, Max: snapshotMaxBackoff}.Delay(s.failures)
	s.pending, s.retryAt, s.problem = true, now.Add(rest), err.Error()
	return rest
}

// uploader uploads one snapshot at a time.
type uploader struct {
	busy   sync.Mutex  // held during an upload
	wakeup cell.Signal // wakes the upload

	mu    sync.Mutex
	state uploadState
}

// addPending records a new snapshot. A delay after a failure continues.
func (s *uploader) addPending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.pending = true
}

// problem returns the error of the last attempt for a target URL; empty if it succeeded.
func (s *uploader) problem(place string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.target.Place != place {
		return ""
	}
	return s.state.problem
}

// snapshotTarget returns the upload target of the configuration; the zero value if there is none. e
// says how the target is reached.
func snapshotTarget(want config.Snapshots, e egress.Config) nodespec.EtcdTarget {
	t := want.Target
	if t == nil || len(want.Recipients) == 0 {
		return nodespec.EtcdTarget{}
	}
	return nodespec.EtcdTarget{
		Place: t.URL(), Endpoint: t.Endpoint.String(), Region: t.Region, Bucket: t.Bucket, Prefix: t.Prefix,
		AccessKey: t.AccessKey.Reveal(), SecretKey: t.SecretKey.Reveal(), CA: t.CA.PEM(), Egress: e,
	}
}

// target returns the upload target of the configuration, with the present proxy and CAs.
func (k *Manager) target(want config.Snapshots) nodespec.EtcdTarget {
	in, _ := k.deps.Config.Get()
	return snapshotTarget(want, in.Egress)
}

// RunUploads uploads snapshots until shutdown.
func (k *Manager) RunUploads() {
	tick := time.NewTicker(snapshotPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if time.Since(k.deps.Started) < snapshotDelay {
				continue
			}
		case <-k.uploader.wakeup:
		case <-k.deps.Stopping.Done():
			return
		}
		for k.uploadDue(time.Now()) {
		}
	}
}

// uploadDue uploads a snapshot if an upload is due. It reports whether another upload is due at
// once.
func (k *Manager) uploadDue(now time.Time) bool {
	want, there := k.wantedSnapshots()
	if !there || !k.uploader.busy.TryLock() {
		return false
	}
	defer k.uploader.busy.Unlock()
	k.uploader.mu.Lock()
	target := k.target(want)
	next := k.uploader.state.next(target, now)
	k.uploader.mu.Unlock()
	if !next {
		return false
	}
	left, err := k.uploadSnapshot(target)
	return err == nil && left > 0
}

// uploadSnapshot uploads the newest snapshot that the target does not have, and returns the number
// of remaining snapshots. The caller holds uploader.busy.
func (k *Manager) uploadSnapshot(target nodespec.EtcdTarget) (left int, err error) {
	ctx, cancel := limits.Within(context.Background(), k.deps.Stopping, uploadTimeout)
	defer cancel()
	k.uploader.mu.Lock()
	k.uploader.state.begin()
	k.uploader.mu.Unlock()
	done, err := nodespec.Run[nodespec.UploadResult](ctx, k.deps.Command, paths.UserAPI, "upload-snapshot", target)
	k.uploader.mu.Lock()
	defer k.uploader.mu.Unlock()
	switch {
	case err == nil:
		k.uploader.state.uploaded(done.Remaining)
		if done.Uploaded != "" {
			k.deps.Event("etcd", "operation", fmt.Sprintf("the snapshot %s was uploaded to %s", done.Uploaded, target.Place))
		}
	case k.deps.Stopping.Err() == nil:
		rest := k.uploader.state.failure(err, time.Now())
		k.deps.Event("etcd", "failure", fmt.Sprintf("cannot upload a snapshot to %s, retry in %v: %v", target.Place, rest, err))
	}
	return done.Remaining, err
}

// uploadNow uploads the newest snapshot, even during a delay, and returns the problem if it fails.
func (k *Manager) uploadNow(want config.Snapshots) (problem string) {
	target := k.target(want)
	if target.Place == "" {
		return ""
	}
	if !k.uploader.busy.TryLock() {
		return "another upload is running; this one is the next"
	}
	defer k.uploader.wakeup.Wake() // for the remaining snapshots, after busy is released
	defer k.uploader.busy.Unlock()
	k.uploader.mu.Lock()
	k.uploader.state.next(target, time.Now()) // resets the state if the target has changed
	k.uploader.mu.Unlock()
	if _, err := k.uploadSnapshot(target); err != nil {
		return err.Error()
	}
	return ""
}
