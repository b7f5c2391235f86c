package main

import (
	"context"
	"net/netip"
	"net/url"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/clusterhealth"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The wiring of the health of the whole cluster.

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
		Others: func(c *config.Config) []clusterhealth.Machine {
			var all []clusterhealth.Machine
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
		Enabled: func() bool { return m.config.active.Current().Config.IsControlPlane() && objectsEnabled(m) },
		Health: func(ctx context.Context) (*api.HealthResponse, error) {
			s, err := stateForCluster(ctx, m)
			return s.Health, err
		},
		Collect: m.reports.cluster.ClusterHealth,
		Access:  func() nodespec.AccessPoints { return accessPoints(m.config.active.Current().Config) },
		Write: func(content []byte) error {
			return writeForControllers(paths.KubeControllers, nodespec.ClusterReportFile, content)
		},
		Event: m.reports.events.From("cluster health"),
	})
}

// accessPoints returns the services for access to the API server in a configuration. Of the webhook
// for tokens only the host is shown: its URL can contain a secret.
func accessPoints(c *config.Config) (p nodespec.AccessPoints) {
	if c == nil || c.Cluster == nil {
		return p
	}
	k := c.Cluster.Spec.Kubernetes
	for _, j := range k.Authentication.JWT {
		p.Issuers = append(p.Issuers, j.URL)
	}
	if w := k.Authentication.Webhook; w != nil {
		if u, err := url.Parse(w.URL); err == nil {
			p.TokenWebhook = u.Host
		}
	}
	for _, w := range k.Authorization.Webhooks {
		p.Authorizers = append(p.Authorizers, nodespec.Authorizer{Name: w.Name, FailurePolicy: string(w.FailurePolicy)})
	}
	return p
}

// stateForCluster returns the state of this machine for the health of the cluster.
func stateForCluster(ctx context.Context, m *machine) (clusterhealth.State, error) {
	now := m.config.active.Current()
	phase, _ := m.upgrade.Controller.State().Get()
	s := clusterhealth.State{
		Config: now.Config, TrialEnd: now.TrialEnd, Version: m.system.release.Version, Kubernetes: m.system.release.Kubernetes,
		Upgrade: m.upgrade.Controller.Status(phase), Certificates: certificatesForCluster(),
	}
	if objectsEnabled(m) {
		s.Object, _ = m.reports.object.Get()
	}
	err := reportHealth(ctx, m, func(h *api.HealthResponse) (more bool, err error) {
		s.Health = h
		return false, nil
	})
	return s, err
}

// certificatesForCluster returns the certificates of the machine.
func certificatesForCluster() []*api.MachineCertificate {
	list, err := certificates()
	if err != nil {
		return []*api.MachineCertificate{{Problem: err.Error()}}
	}
	var all []*api.MachineCertificate
	for _, c := range list {
		one := &api.MachineCertificate{File: c.File, Problem: c.Problem}
		if c.Problem == "" {
			one.Expires = timestamppb.New(c.Expires)
		}
		if !c.Renews.IsZero() {
			one.Renews = timestamppb.New(c.Renews)
		}
		all = append(all, one)
	}
	return all
}
