package main

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// reportHealth passes the health to each, now and after each change, while each wants more.
func (m *machine) reportHealth(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error {
	services, configuration, members, rules := m.services.Status().Watch(), m.active.Cell().Watch(), m.members.Worker.State.Watch(), m.packets.Problem().Watch()
	program, settled, disks, states := m.panics.State().Watch(), m.reconciler.State().Watch(), m.disks.State().Watch(), m.network.State.Watch()
	floor, began := m.upgrade.Controller.EpochFloor(), time.Now()
	for {
		now := configuration.Current()
		have := clusterHealth(now, members.Current(), services.Current())
		health.Add(have, health.Firewall(rules.Current(), now.At), program.Current().Check())
		if broken := settled.Current().Problem(now.Config, states.Current()); broken != "" {
			health.ConfigurationNotActive(have, broken)
		}
		upgrade.ReleaseCheck(have, m.system.release, floor, began)
		health.Add(have, storageCheck(disks.Current().Filesystems))
		var later <-chan time.Time
		if have.Healthy && time.Since(now.At) < activationTime {
			if waits, err := m.reconciler.WaitingServices(now.Config); err == nil && len(waits) > 0 {
				health.ConfigurationNotActive(have, "not active yet: "+strings.Join(waits, ", "))
				later = time.After(activationPollInterval)
			}
		}
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

// clusterHealth returns the machine's view of its cluster.
func clusterHealth(now activeconfig.Active, member membership.State, services []supervise.Status) *api.HealthResponse {
	return health.Of(health.Machine{
		Config: now.Config, Applied: now.At, Expected: expectedServices(now.Config), Services: services,
		Membership: health.Membership{Joined: member.Joined, Removed: member.Removed, Problem: member.Problem},
	})
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

// storageCheck returns the check of the file systems with errors; nil if there are none. The
// upgrade checks ignore it: the version is not at fault.
func storageCheck(list []disk.FilesystemErrors) *api.HealthCheck {
	if len(list) == 0 {
		return nil
	}
	check := &api.HealthCheck{Name: "storage", Ok: true, Since: timestamppb.New(time.Time{})}
	var details []string
	for _, s := range list {
		check.Ok = check.Ok && s.OK()
		details = append(details, s.String())
	}
	check.Detail = strings.Join(details, "; ")
	return check
}
