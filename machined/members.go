package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The wiring of the membership of the cluster (machined/membership).

// memberDeps are the dependencies of the membership.
func memberDeps(m *machine) membership.Deps {
	return membership.Deps{
		Config:      cell.Map(m.active.Cell(), func(now activeconfig.Active) *config.Config { return now.Config }),
		Addresses:   cell.Map(m.network.State, addressesOf),
		Files:       membership.Files{Ledger: paths.TrustLedger, Certificates: paths.Membership, OfflineAPI: paths.OfflineAPI},
		Installed:   m.bootMedium == "",
		Identity:    func() *ecdsa.PrivateKey { return m.identity.Load().Key },
		Certificate: servingCertificate,
		Transport:   membership.Transport{Dial: client.Dial, RequestJoin: client.RequestJoin},
		DeleteNodes: func(ctx context.Context, r nodespec.NodeGCRequest) ([]string, error) {
			return nodespec.Run[[]string](ctx, m.orchestrator.run, paths.UserControllers, "delete-removed-nodes", r)
		},
		APIServerReady: m.apiServerReady,
		StopPods:       func(ctx context.Context) error { return m.pods.Stop(ctx) },
		Enforce:        func(ctx context.Context) error { return m.reconciler.EnforceRevocations(ctx) },
		Event:          m.events.add,
		Now:            time.Now,
		Floor:          func() time.Time { return m.clock.floor.Now(time.Now()) },
		Running:        m.power.Running(),
	}
}

// addressesOf returns the addresses of a network state.
func addressesOf(state network.State) membership.Addresses {
	return membership.Addresses{All: ownAddresses(state), Reachable: state.NodeAddresses}
}

// servingCertificate returns the machine certificate with its key, as apid has them.
func servingCertificate() (tls.Certificate, error) {
	return tls.LoadX509KeyPair(filepath.Join(paths.ApidDir, apid.ServerCertFile), filepath.Join(paths.ApidDir, apid.ServerKeyFile))
}

// apiServerReady reports whether the API server of this machine is ready.
func (m *machine) apiServerReady() bool {
	list, _ := m.services.Status().Get()
	return slices.ContainsFunc(list, func(s supervise.Status) bool {
		return s.Name == nodeplan.ServiceKubeAPI && slices.ContainsFunc(s.Components, func(c supervise.Component) bool {
			return c.Name == componentAPIServer && c.Ready
		})
	})
}

// componentAPIServer is the component name of the API server.
const componentAPIServer = "kube-apiserver"

// callers returns the CAs of the callers that the machine accepts.
func (m *machine) callers(c *config.Config) (credentials.CallerCAs, error) {
	var out credentials.CallerCAs
	var err error
	if out.Operators, err = ownership.Operators(c); err != nil {
		return out, err
	}
	revoked, damaged := m.members.Ledger.Revocations()
	if c != nil && c.Cluster != nil {
		own := c.Cluster.Spec.PKI
		out.Machines = trusted(own.Machine.Cert, own.Accepted.Machine)
		// It is unknown which of the issued certificates were revoked, so none is valid; the
		// operators' own certificates stay valid.
		if !own.Client.Cert.IsZero() && damaged == nil {
			out.Clients = trusted(own.Client.Cert, own.Accepted.Client)
		}
	}
	out.JoinRequests = membership.AcceptsJoinRequests(c)
	out.Revoked, err = json.Marshal(revoked)
	return out, err
}
