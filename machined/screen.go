package main

import (
	"context"
	"fmt"

	"github.com/orlop-os/orlop/machined/console"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// showConsole opens the consoles and updates their status. A machine without a console still has
// its events.
func showConsole(ctx context.Context, m *machine) {
	status := cell.New(console.Status{Stage: "starting"})
	c, err := console.Open(status, func(err error) { m.reports.events.Add("console", "failure", err.Error()) })
	if err != nil {
		m.reports.events.Add("console", "failure", err.Error())
		return
	}
	m.reports.events.ShowOn(c)
	m.reports.panics.Restarter().Go(ctx, "console", c.Run)
	m.reports.panics.Restarter().Go(ctx, "console status", func(ctx context.Context) { watchConsole(ctx, m, status) })
}

// watchConsole derives the status of the console from the cells.
func watchConsole(ctx context.Context, m *machine, status *cell.Cell[console.Status]) {
	stages, services := m.reports.progress.Stage().Watch(), m.processes.services.Status().Watch()
	networks, configs, storage := m.domains.network.State.Watch(), m.config.active.Cell().Watch(), m.domains.disks.Problem().Watch()
	codes := m.pairing.Code().Watch()
	for {
		stages.Current()
		services.Current()
		networks.Current()
		configs.Current()
		storage.Current()
		codes.Current()
		status.Set(consoleStatus(m))
		select {
		case <-stages.Changed():
		case <-services.Changed():
		case <-networks.Changed():
		case <-configs.Changed():
		case <-storage.Changed():
		case <-codes.Changed():
		case <-ctx.Done():
			return
		}
	}
}

func consoleStatus(m *machine) console.Status {
	stage, _ := m.reports.progress.Stage().Get()
	list, _ := m.processes.services.Status().Get()
	state, _ := m.domains.network.State.Get()
	now := m.config.active.Current()
	s := console.Status{Name: now.MachineName(), Version: m.system.release.Version, Slot: m.system.slot, Medium: m.system.bootMedium, Stage: stage.Name, Problem: m.domains.disks.StorageProblem()}
	if m.system.inMemory() {
		s.Problem = "" // it needs no disk
	}
	if s.Problem == "" {
		s.Problem = now.Problem
	}
	if id := m.identity.Load(); id != nil {
		s.Identity = pki.Fingerprint(id.Cert)
	}
	if code, _ := m.pairing.Code().Get(); code != "" {
		s.PairingCode = string(code)
	}
	if stage.WaitingFor != "" {
		s.WaitsFor = append(s.WaitsFor, stage.WaitingFor)
	}
	if now.Config != nil && now.Config.Cluster != nil {
		s.Kubernetes = m.system.release.Kubernetes
	}
	for _, a := range nodeplan.Addresses(now.Config, state) {
		s.Addresses = append(s.Addresses, a.String())
	}
	for _, one := range list {
		line := one.Name + " " + string(one.State)
		if one.Name == nodespec.ServiceApid && one.State == supervise.Running && len(s.Addresses) > 0 {
			s.Endpoint = fmt.Sprintf("%s:%d", s.Addresses[0], paths.PortApid)
		}
		s.Services = append(s.Services, line)
	}
	if len(s.Addresses) == 0 {
		s.WaitsFor = append(s.WaitsFor, state.Problems...)
	}
	return s
}
