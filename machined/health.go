package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/machined/wear"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// reportHealth passes the health to each, now and after each change, while each wants more.
func reportHealth(ctx context.Context, m *machine, each func(*api.HealthResponse) (more bool, err error)) error {
	services, configuration, members, rules := m.processes.services.Status().Watch(), m.config.active.Cell().Watch(), m.members.Worker.State.Watch(), m.domains.packets.Problem().Watch()
	program, settled, disks, states := m.reports.panics.State().Watch(), m.config.reconciler.State().Watch(), m.domains.disks.State().Watch(), m.domains.network.State.Watch()
	turn, extended, placed, worn := m.guard.State().Watch(), m.domains.extensions.States().Watch(), m.domains.volumes.State().Watch(), m.domains.wear.Disks().Watch()
	began := time.Now()
	floor, unknown := 0, error(limits.ErrUnknown)
	for {
		now := configuration.Current()
		have := health.Of(healthOf(now, members.Current(), services.Current()))
		health.Add(have, health.Volumes(placed.Current().HealthProblem(), now.At), health.Firewall(rules.Current(), now.At), program.Current().Check())
		if broken := settled.Current().Problem(now.Config, states.Current()); broken != "" {
			health.ConfigurationNotActive(have, broken)
		}
		if unknown != nil {
			floor, unknown = m.upgrade.Controller.ReadEpochFloor(ctx)
		}
		upgrade.ReleaseCheck(have, m.system.release, floor, began)
		health.Add(have, extensions.Check(extended.Current()), health.Storage(disks.Current().Filesystems), health.Wear(wear.Warnings(worn.Current())), health.Unanswered("STATE", "which epoch is the highest of a committed version", unknown, began))
		var later <-chan time.Time
		if have.Healthy && time.Since(now.At) < activationTime {
			waits, err := m.config.reconciler.WaitingServices(ctx, now.Config)
			switch {
			case errors.Is(err, limits.ErrUnknown):
				health.Add(have, health.Unanswered("STATE", "which services do not run with the configuration yet", err, now.At))
			case err == nil && len(waits) > 0:
				health.ConfigurationNotActive(have, "not active yet: "+strings.Join(waits, ", "))
			}
			if !have.Healthy {
				later = time.After(activationPollInterval)
			}
		} else if unknown != nil {
			later = time.After(activationPollInterval)
		}
		health.Add(have, turn.Current().Check()) // last: it does not count for the checks above
		if more, err := each(have); err != nil || !more {
			return err
		}
		select {
		case <-services.Changed():
		case <-configuration.Changed():
		case <-members.Changed():
		case <-rules.Changed():
		case <-program.Changed():
		case <-settled.Changed():
		case <-disks.Changed():
		case <-states.Changed():
		case <-turn.Changed():
		case <-extended.Changed():
		case <-placed.Changed():
		case <-worn.Changed():
		case <-later:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// activationTime is the time after a configuration change in which its services may not have
// restarted yet; a longer delay is reported elsewhere. activationPollInterval is the interval
// between the checks.
const (
	activationTime         = 30 * time.Second
	activationPollInterval = time.Second
)

// healthOf returns the state of the machine from which package health computes the health.
func healthOf(now activeconfig.Active, member membership.State, services []supervise.Status) health.Machine {
	return health.Machine{
		Config: now.Config, Applied: now.At, Expected: expectedServices(now.Config), Services: services,
		Membership: health.Membership{Joined: member.Joined, Removed: member.Removed, Problem: member.Problem},
	}
}

// expectedServices returns the services of a configuration, running or not.
func expectedServices(c *config.Config) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	var names []string
	for _, s := range nodeplan.Kubernetes(c.Machine.Spec.Role == config.RoleControlPlane) {
		names = append(names, s.Name)
	}
	return names
}

// healthWatcher watches the health of a version on trial.
type healthWatcher struct {
	version        string
	storageProblem func() string
	hasStored      func() bool // a configuration
	storedReads    *limits.Bounded
	config         *cell.Watcher[activeconfig.Active]
	services       *cell.Watcher[[]supervise.Status]
	members        *cell.Watcher[membership.State]
	rules          *cell.Watcher[string]
	panics         *cell.Watcher[events.PanicState]
	extensions     *cell.Watcher[[]extensions.State]
}

func watchHealth(m *machine) upgrade.HealthWatcher {
	return healthWatcher{
		version: m.system.release.Version, storageProblem: m.domains.disks.StorageProblem, hasStored: m.config.active.HasStored, storedReads: new(limits.Bounded),
		config: m.config.active.Cell().Watch(), services: m.processes.services.Status().Watch(),
		members: m.members.Worker.State.Watch(), rules: m.domains.packets.Problem().Watch(), panics: m.reports.panics.State().Watch(),
		extensions: m.domains.extensions.States().Watch(),
	}
}

func (w healthWatcher) Health() upgrade.Health {
	now := w.config.Current()
	trial := health.Trial{Machine: healthOf(now, w.members.Current(), w.services.Current()), StorageProblem: w.storageProblem()}
	if now.Config == nil && trial.StorageProblem == "" {
		stored, err := limits.Read(context.Background(), w.storedReads, "stored configuration", limits.StateTimeout, func(context.Context) (bool, error) { return w.hasStored(), nil })
		if trial.Stored = stored; err != nil {
			trial.StorageProblem = "STATE does not answer, so it is unknown whether it has a configuration: " + err.Error()
		}
	}
	failed := health.FailedCheck(trial)
	return upgrade.Health{Config: now.Config, Failed: cmp.Or(failed, w.rules.Current(), extensions.Problem(w.extensions.Current(), w.version))}
}

func (w healthWatcher) Panic() string { return w.panics.Current().Reason(w.version) }

func (w healthWatcher) Wait(ctx context.Context) error {
	select {
	case <-w.config.Changed():
	case <-w.services.Changed():
	case <-w.members.Changed():
	case <-w.rules.Changed():
	case <-w.panics.Changed():
	case <-w.extensions.Changed():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
