package main

import (
	"context"
	"fmt"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/machinemetrics"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/exposition"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
)

// serveMetrics serves the metrics of the machine for metricsd. A failure changes nothing for the
// clients of apid.
func serveMetrics(m *machine) error {
	listener, err := machinedapi.Listen(nodespec.MetricsSocket(nodespec.ServiceMachined), paths.UserMetrics)
	if err != nil {
		return err
	}
	panics.Go("metrics of the machine", func() {
		handler := machinemetrics.Handler(func(ctx context.Context) (machinemetrics.State, error) { return metricsOf(ctx, m) })
		m.reports.events.Add("metrics", "failure", fmt.Sprintf("the socket has ended: %v; reboot the machine", exposition.Serve(listener, handler)))
	})
	return nil
}

// metricsOf returns the state of the machine for its metrics.
func metricsOf(ctx context.Context, m *machine) (machinemetrics.State, error) {
	upgrade, _ := m.upgrade.Controller.State().Get()
	clock, _ := m.domains.clock.status.Get()
	services, _ := m.processes.services.Status().Get()
	out := machinemetrics.State{
		Version: m.system.release.Version, Kubernetes: m.system.release.Kubernetes, Services: services,
		Upgrade: m.upgrade.Controller.Status(upgrade), Clock: machinemetrics.Clock{Synced: clock.Synced, Offset: clock.Offset},
	}
	err := reportHealth(ctx, m, func(h *api.HealthResponse) (more bool, err error) {
		out.Health = h
		return false, nil
	})
	if err != nil {
		return out, err
	}
	known, err := certificates()
	for _, c := range known {
		if c.Problem == "" {
			out.Certificates = append(out.Certificates, machinemetrics.Certificate{File: c.File, Subject: c.Subject, Expires: c.Expires})
		}
	}
	return out, err
}
