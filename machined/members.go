package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
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
		Installed:   !m.system.inMemory(),
		Identity:    func() *ecdsa.PrivateKey { return m.identity.Load().Key },
		Certificate: servingCertificate,
		Transport:   membership.Transport{Dial: client.Dial, RequestJoin: client.RequestJoin},
		DeleteNodes: func(ctx context.Context, r nodespec.NodeGCRequest) ([]string, error) {
			return nodespec.Run[[]string](ctx, m.commands.run, paths.UserControllers, "delete-removed-nodes", r)
		},
		APIServerReady: func() bool { return apiServerReady(m.services) },
		StopPods:       func(ctx context.Context) error { return m.power.StopPods(ctx) },
		Enforce:        func(ctx context.Context) error { return m.reconciler.EnforceRevocations(ctx) },
		Event:          m.events.Add,
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
func apiServerReady(services *supervise.Manager) bool {
	list, _ := services.Status().Get()
	return slices.ContainsFunc(list, func(s supervise.Status) bool {
		return s.Name == nodeplan.ServiceKubeAPI && slices.ContainsFunc(s.Components, func(c supervise.Component) bool {
			return c.Name == componentAPIServer && c.Ready
		})
	})
}

// componentAPIServer is the component name of the API server.
const componentAPIServer = "kube-apiserver"
