package etcd

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestUploadState checks that uploadState retries a failed upload after a growing delay, and that a
// change of the target resets the state.
func TestUploadState(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	one := nodespec.EtcdTarget{Place: "https://s3.example.com:443/backups", SecretKey: "old"}
	var s uploadState
	next := func(want bool, target nodespec.EtcdTarget) {
		t.Helper()
		if got := s.next(target, now); got != want {
			t.Errorf("at %v: %t, %+v", now.Format(time.TimeOnly), got, s)
		}
	}
	next(false, nodespec.EtcdTarget{})
	next(true, one) // earlier snapshots may be pending
	s.begin()
	s.uploaded(0)
	next(false, one)
	s.pending = true
	s.begin()
	s.pending = true // another snapshot is taken during the upload
	s.uploaded(0)
	next(true, one)
	s.begin()
	s.uploaded(0)
	next(false, one)
	s.pending = true
	for _, want := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 40 * time.Minute, time.Hour, time.Hour} {
		next(true, one)
		if delay := s.failure(errors.New("no route to host"), now); delay != want || s.problem != "no route to host" {
			t.Errorf("the delay before the next upload is %v, want %v: %+v", delay, want, s)
		}
		now = now.Add(want - time.Second)
		next(false, one)
		now = now.Add(time.Second)
	}
	next(true, one)
	s.uploaded(2)
	if s.problem != "" {
		t.Errorf("%+v", s)
	}
	next(true, one)
	s.failure(errors.New("another secret"), now)
	next(false, one)
	one.SecretKey = "new"
	next(true, one)
	if s.problem != "" {
		t.Errorf("the state has the problem of the former secret: %+v", s)
	}
	next(false, nodespec.EtcdTarget{})
}

// TestSnapshotTarget checks the target of the reference configuration, with the secret key in plain
// text. Snapshots that are not encrypted, because they have no recipients, have no target.
func TestSnapshotTarget(t *testing.T) {
	ref, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := ref.Cluster.Spec.Etcd.Snapshots
	got := snapshotTarget(want, egress.Config{})
	if got.Place != "https://s3.example.com:443/backups/orlop/site-1" || got.Endpoint != "https://s3.example.com:443" || got.Region != "eu-central-1" || got.Prefix != "orlop/site-1" ||
		got.AccessKey != want.Target.AccessKey.Reveal() || got.SecretKey != want.Target.SecretKey.Reveal() || !strings.HasPrefix(got.CA, "-----BEGIN CERTIFICATE-----") {
		t.Error(strings.ReplaceAll(fmt.Sprintf("%+v", got), got.SecretKey, "…"))
	}
	want.Recipients = nil
	if got := snapshotTarget(want, egress.Config{}); got != (nodespec.EtcdTarget{}) {
		t.Error("snapshots that are not encrypted have a target")
	}
}

// TestUploader checks that problem returns the problem of the last upload to a target, until an
// upload to it succeeds, and that a wakeup is not lost.
func TestUploader(t *testing.T) {
	s := uploader{wakeup: cell.NewSignal()}
	s.state.next(nodespec.EtcdTarget{Place: "a"}, time.Now())
	s.state.failure(errors.New("refused"), time.Now())
	if a, b := s.problem("a"), s.problem("b"); a != "refused" || b != "" {
		t.Errorf("%q, %q", a, b)
	}
	s.state.begin()
	s.state.uploaded(0)
	s.addPending()
	if !s.state.pending || s.problem("a") != "" {
		t.Errorf("%+v", s.state)
	}
	s.wakeup.Wake()
	s.wakeup.Wake()
	select {
	case <-s.wakeup:
	default:
		t.Error("the signal wakeup is not set after two calls of Wake")
	}
}
