package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/vm"
)

// killWithin is the longest time from the start of an operation to the cut. It is about the time in
// which an upgrade writes the new version.
const killWithin = 60 * time.Second

// victim is the machine of the class kill. All cuts of the class use the same machine and disk.
type victim struct {
	*machine
	promise
}

// victim switches on the machine of the class kill, and configures it if it has no configuration.
func (s *soak) victim(ctx context.Context) (*victim, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	dir := filepath.Join(s.dir, classKill)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	m, err := powerOn(ctx, s.options, dir, vm.Disk{})
	if err != nil {
		return nil, err
	}
	v := &victim{machine: m}
	if err = m.answers(ctx); err == nil {
		v.Configuration, err = m.configuration(ctx)
	}
	if err == nil && v.Configuration == "" {
		if err = m.apply(ctx, s.documents); err == nil {
			v.Configuration, err = m.configuration(ctx)
		}
	}
	if err != nil {
		m.off()
		return nil, fmt.Errorf("machine of class %s: %w", classKill, err)
	}
	v.Versions, v.Identity, v.Configured, v.Upgraded = []string{s.oldVersion, s.newVersion}, m.identity, true, true
	return v, nil
}

// kill starts an operation of the machine, ends the emulator at a random instant, and checks the
// recovery. After a recovery, the machine remains on for the next cut.
func (s *soak) kill(ctx context.Context, luck *rand.Rand, r *result) error {
	if s.living == nil {
		v, err := s.victim(ctx)
		if err != nil {
			return err
		}
		s.living = v
	}
	v := s.living
	status, err := v.status(ctx)
	if err != nil {
		return err
	}
	what, do := s.choose(v, status, luck)
	instant := time.Duration(luck.Int64N(int64(killWithin)))
	r.Instant = fmt.Sprintf("%.1f s after %s", instant.Seconds(), what)
	err = v.cut(ctx, do, instant)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		r.Outcome, r.Wrong = faulty, []string{err.Error()}
	} else if err = v.PowerOn(ctx); err != nil {
		return err
	} else if err = s.check(ctx, v.machine, v.promise, nil, r); err != nil {
		s.letGo()
		return err
	}
	if r.Outcome == recovered {
		return nil
	}
	s.letGo()
	r.Kept, err = s.keep(ctx, r.Number, filepath.Join(s.dir, classKill))
	return err
}

// choose selects the operation that the cut interrupts. The function do starts the operation; do is
// nil if the machine only continues its work. The text what describes the operation.
func (s *soak) choose(v *victim, status *api.UpgradeStatus, luck *rand.Rand) (what string, do func(context.Context) error) {
	switch {
	case !ended(status):
		return "a start amid an upgrade", nil
	case luck.IntN(4) == 0:
		return "a start", nil
	case status.Running == s.oldVersion:
		return "an upgrade began", func(ctx context.Context) error { _, err := v.upgrade(ctx, s.bundle("next")); return err }
	}
	return "a rollback began", v.rollback
}

// cut starts the operation do, and cuts the power after the given time. It returns an error if the
// machine rejects the operation.
func (v *victim) cut(ctx context.Context, do func(context.Context) error, after time.Duration) error {
	instant := time.After(after)
	asked := make(chan error, 1)
	acting, cancel := context.WithCancel(ctx)
	// The power is cut first, because the machine must not see the end of the connection.
	defer func() { v.PowerCut(); cancel() }()
	if do != nil {
		go func() { asked <- do(acting) }()
	}
	for {
		select {
		case err := <-asked:
			if err != nil {
				return err
			}
		case <-instant:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// letGo switches off the machine of the class kill, if it is on.
func (s *soak) letGo() {
	if s.living != nil {
		s.living.off() // the power is cut even if off returns an error
		s.living = nil
	}
}
