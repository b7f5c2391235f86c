package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

const (
	// answerLimit is the deadline for the first answer of a machine, by the clock of this computer.
	// It includes three attempts to boot a failing version.
	answerLimit = 5 * time.Minute
	// wholeLimit is the deadline of each of the two steps of the method whole.
	wholeLimit = 5 * time.Minute
)

// errEarly means that the emulator failed, or was stopped from outside the machine. The cut is
// repeated, because this is not a fault of the machine.
var errEarly = errors.New("the emulator ended early")

// check checks a machine that was switched on after a cut, and records the outcome in r. It returns
// an error only if the check could not be completed, for example errEarly.
func (s *soak) check(ctx context.Context, m *machine, p promise, objects []string, r *result) error {
	r.Outcome = recovered
	wrong, err := s.look(ctx, m, p, r)
	if err != nil {
		r.Outcome, wrong = bricked, []string{err.Error()}
	} else if r.Whole && len(wrong) == 0 {
		if err := s.whole(ctx, m, objects, r); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !m.Running() {
		exit, err := m.Wait(ctx)
		// The system in the machine has switched the machine off. This is a fault of the system.
		if err == nil && exit.Request == "" && exit.Err() == nil {
			r.Outcome, r.Wrong, r.Console = bricked, []string{exit.String()}, m.ConsoleTail(60)
			return nil
		}
		return errors.Join(fmt.Errorf("%w: %s", errEarly, exit), err)
	}
	if len(wrong) == 0 {
		return nil
	}
	if r.Outcome == recovered {
		r.Outcome = faulty
	}
	r.Wrong, r.Console = wrong, m.ConsoleTail(60)
	return nil
}

// look compares the state of the machine at its first answer with the promise, and returns the
// violations. It returns an error if the machine does not recover.
func (s *soak) look(ctx context.Context, m *machine, p promise, r *result) (wrong []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	now := seen{Identity: m.identity}
	if now.Uptime, err = m.uptime(ctx); err != nil {
		return nil, err
	}
	if now.Configuration, err = m.configuration(ctx); err != nil {
		return nil, err
	}
	status, err := m.status(ctx)
	if err != nil {
		return nil, err
	}
	err = m.call(ctx, func(ctx context.Context, c *client.Client) error {
		disks, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "disks"})
		now.Storage = disks.GetValue().GetStructValue().GetFields()["problem"].GetStringValue()
		return err
	})
	now.Version, now.Phase = status.GetRunning(), status.GetPhase()
	r.Version, r.Phase, r.Answered = now.Version, now.Phase, now.Uptime.Seconds()
	return p.judge(now), err
}

// uptime returns the time since the start of the machine's kernel.
func (m *machine) uptime(ctx context.Context) (up time.Duration, err error) {
	err = m.call(ctx, func(ctx context.Context, c *client.Client) error {
		system, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "system"})
		up = time.Duration(system.GetValue().GetStructValue().GetFields()["uptimeSeconds"].GetNumberValue() * float64(time.Second))
		return err
	})
	return up, err
}

// whole checks that the machine works completely. Its cluster must become healthy and have the
// acknowledged objects, and the machine must change to the other version.
func (s *soak) whole(ctx context.Context, m *machine, objects []string, r *result) error {
	bounded := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, wholeLimit)
		defer cancel()
		return do(ctx)
	}
	return errors.Join(
		bounded(func(ctx context.Context) error { return s.cluster(ctx, m, objects, r) }),
		bounded(func(ctx context.Context) error { return s.change(ctx, m) }),
	)
}

func (s *soak) cluster(ctx context.Context, m *machine, objects []string, r *result) error {
	now, err := m.configuration(ctx)
	if err == nil && now == "" {
		err = m.apply(ctx, s.documents)
	}
	if err != nil {
		return err
	}
	if err := m.healthy(ctx); err != nil {
		return err
	}
	up, err := m.uptime(ctx)
	if err != nil {
		return err
	}
	if r.Healthy = up.Seconds(); up > patience {
		return fmt.Errorf("the cluster was healthy only after %.0f s", up.Seconds())
	}
	kept, err := m.kept(ctx)
	if err != nil {
		return err
	}
	lost := slices.DeleteFunc(slices.Clone(objects), func(name string) bool { return kept[name] })
	if len(lost) > 0 {
		return fmt.Errorf("objects %q were acknowledged and are lost", lost)
	}
	return nil
}

// change upgrades a machine that runs the old version to the new version. It rolls back a machine
// that runs the new version.
func (s *soak) change(ctx context.Context, m *machine) error {
	before, err := m.outcome(ctx)
	if err != nil {
		return err
	}
	phase, version := "committed", s.newVersion
	if before.Running == s.oldVersion {
		_, err = m.upgrade(ctx, s.bundle("next"))
	} else {
		phase, version = "rolled back", s.oldVersion
		err = m.rollback(ctx)
	}
	if err != nil {
		return err
	}
	return m.ends(ctx, phase, version)
}
