package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/clusterhealth"
	"github.com/orlop-os/orlop/machined/console"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/machinemetrics"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// The wiring of the health of the cluster, the metrics and the console, each with the state from
// which its package computes the result.

func newClusterHealth(m *machine) *clusterhealth.Collector {
	return clusterhealth.New(clusterhealth.Deps{
		Config: func() *config.Config { return m.config.active.Current().Config },
		Address: func(c *config.Config) string {
			state, _ := m.domains.network.State.Get()
			if own := state.NodeAddresses(c.Cluster.Spec.ControlPlanes); len(own) > 0 {
				return own[0].String()
			}
			return ""
		},
		Others: func(c *config.Config) (all []clusterhealth.Machine) {
			for _, other := range m.members.Peers.Machines(c) {
				all = append(all, clusterhealth.Machine{Name: other.Name, Address: other.Address.String(), ControlPlane: other.ControlPlane})
			}
			return all
		},
		Call: func(ctx context.Context, other clusterhealth.Machine, do func(*client.Client) error) error {
			addr, err := netip.ParseAddr(other.Address)
			if err != nil {
				return err
			}
			return m.members.Peers.CallMachine(ctx, membership.Machine{Name: other.Name, Address: addr, ControlPlane: other.ControlPlane}, do)
		},
		State: func(ctx context.Context) (clusterhealth.State, error) { return stateForCluster(ctx, m) },
		Etcd: func(ctx context.Context) (*api.EtcdStatusResponse, error) {
			out := &api.EtcdStatusResponse{}
			return out, m.etcd.Read(ctx, "data-status", nil, out)
		},
		Now: time.Now,
	})
}

// newHealthPublisher passes the health of the cluster to the controllers of this machine.
func newHealthPublisher(m *machine) *clusterhealth.Publisher {
	return clusterhealth.NewPublisher(clusterhealth.PublisherDeps{
		Enabled: func() bool {
			now := m.config.active.Current().Config
			return now.IsControlPlane() && now.HasMachineObjects()
		},
		Health:  func(ctx context.Context) (*api.HealthResponse, error) { return currentHealth(ctx, m) },
		Collect: m.reports.cluster.ClusterHealth,
		Access:  func() nodespec.AccessPoints { return clusterhealth.AccessPoints(m.config.active.Current().Config) },
		Write: func(content []byte) error {
			return safefile.Publish(paths.KubeControllers, nodespec.ClusterReportFile, content)
		},
		Event: m.reports.events.From("cluster health"),
	})
}

// currentHealth returns the health of the machine.
func currentHealth(ctx context.Context, m *machine) (now *api.HealthResponse, err error) {
	err = m.reports.health.Watch(ctx, func(h *api.HealthResponse) (more bool, err error) {
		now = h
		return false, nil
	})
	return now, err
}

// stateForCluster returns the state of this machine for the health of the cluster.
func stateForCluster(ctx context.Context, m *machine) (s clusterhealth.State, err error) {
	now := m.config.active.Current()
	phase, _ := m.upgrade.Controller.State().Get()
	s = clusterhealth.State{
		Config: now.Config, TrialEnd: now.TrialEnd, Version: m.system.release.Version, Kubernetes: m.system.release.Kubernetes,
		Upgrade: m.upgrade.Controller.Status(phase), Certificates: credentials.Report(certificates()),
	}
	if now.Config.HasMachineObjects() {
		s.Object, _ = m.reports.object.Get()
	}
	s.Health, err = currentHealth(ctx, m)
	return s, err
}

// serveMetrics serves the metrics of the machine for metricsd. A failure does not affect the
// clients of apid.
func serveMetrics(m *machine) error {
	listener, err := machinedapi.Listen(nodespec.MetricsSocket(nodespec.ServiceMachined), paths.UserMetrics)
	if err != nil {
		return err
	}
	panics.Go("metrics of the machine", func() {
		handler := machinemetrics.Handler(func(ctx context.Context) (machinemetrics.State, error) { return stateForMetrics(ctx, m) })
		m.reports.events.Add("metrics", "failure", fmt.Sprintf("the socket has ended: %v; reboot the machine", exposition.Serve(listener, handler)))
	})
	return nil
}

// stateForMetrics returns the state of the machine for its metrics.
func stateForMetrics(ctx context.Context, m *machine) (s machinemetrics.State, err error) {
	upgrade, _ := m.upgrade.Controller.State().Get()
	clock, _ := m.domains.clock.status.Get()
	services, _ := m.processes.services.Status().Get()
	s = machinemetrics.State{
		Version: m.system.release.Version, Kubernetes: m.system.release.Kubernetes, Services: services,
		Upgrade: m.upgrade.Controller.Status(upgrade), Clock: machinemetrics.Clock{Synced: clock.Synced, Offset: clock.Offset},
	}
	if s.Health, err = currentHealth(ctx, m); err != nil {
		return s, err
	}
	known, err := certificates()
	for _, c := range known {
		if c.Problem == "" {
			s.Certificates = append(s.Certificates, machinemetrics.Certificate{File: c.File, Subject: c.Subject, Expires: c.Expires})
		}
	}
	return s, err
}

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

// watchConsole updates the status of the console after each change.
func watchConsole(ctx context.Context, m *machine, status *cell.Cell[console.Status]) {
	changes := cell.NewGroup(
		m.reports.progress.Stage().View().Changes(), m.processes.services.Status().View().Changes(), m.domains.network.State.View().Changes(),
		m.config.active.Cell().View().Changes(), m.domains.disks.Problem().View().Changes(), m.pairing.Code().Changes(),
	)
	for ctx.Err() == nil {
		changes.Mark()
		status.Set(console.StatusOf(stateForConsole(m)))
		_ = changes.Wait(ctx, nil) // the loop ends with ctx
	}
}

// stateForConsole returns the state of the machine for the console.
func stateForConsole(m *machine) console.Facts {
	stage, _ := m.reports.progress.Stage().Get()
	services, _ := m.processes.services.Status().Get()
	state, _ := m.domains.network.State.Get()
	code, _ := m.pairing.Code().Get()
	now := m.config.active.Current()
	f := console.Facts{
		Name: now.MachineName(), Version: m.system.release.Version, Slot: m.system.slot, Medium: m.system.bootMedium,
		Stage: stage.Name, WaitingFor: stage.WaitingFor, PairingCode: string(code),
		Addresses: nodeplan.Addresses(now.Config, state), NetworkProblems: state.Problems, Services: services,
		StorageProblem: m.domains.disks.StorageProblem(), ConfigProblem: now.Problem,
	}
	if id := m.identity.Load(); id != nil {
		f.Identity = pki.Fingerprint(id.Cert)
	}
	if now.Config != nil && now.Config.Cluster != nil {
		f.Kubernetes = m.system.release.Kubernetes
	}
	return f
}
