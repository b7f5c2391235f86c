package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"net/netip"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/suspend"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The wiring of the packages for the identity of the machine and its cluster.

// memberDeps are the dependencies of the membership.
func memberDeps(m *machine) membership.Deps {
	return membership.Deps{
		Config:      cell.Map(m.config.active.Cell(), func(now activeconfig.Active) *config.Config { return now.Config }),
		Addresses:   cell.Map(m.domains.network.State, addressesOf),
		Files:       membership.Files{Ledger: paths.TrustLedger, Certificates: paths.Membership, OfflineAPI: paths.OfflineAPI},
		Installed:   !m.system.inMemory(),
		Identity:    func() *ecdsa.PrivateKey { return m.identity.Load().Key },
		Certificate: servingCertificate,
		Transport:   membership.Transport{Dial: client.Dial, RequestJoin: client.RequestJoin},
		DeleteNodes: func(ctx context.Context, r nodespec.NodeGCRequest) ([]string, error) {
			return nodespec.Run[[]string](ctx, m.processes.commands.run, paths.UserControllers, "delete-removed-nodes", r)
		},
		APIServerReady: func() bool { return apiServerReady(m.processes.services) },
		Removal: membership.Removal{
			StopPods: func(ctx context.Context) error { return m.power.StopPods(ctx) },
			Wipe:     func(ctx context.Context) error { return wipeRemoved(ctx, m) },
		},
		Enforce: func(ctx context.Context) error { return m.config.reconciler.EnforceRevocations(ctx) },
		Event:   m.reports.events.Add,
		Now:     time.Now,
		Floor:   func() time.Time { return m.domains.clock.floor.Now(time.Now()) },
		Running: m.power.Running(),
	}
}

// addressesOf returns the addresses of a network state.
func addressesOf(state network.State) membership.Addresses {
	return membership.Addresses{All: ownAddresses(state), Reachable: state.NodeAddresses}
}

// servingCertificate returns the machine certificate with its key, from the files of apid.
func servingCertificate() (tls.Certificate, error) {
	return tls.LoadX509KeyPair(filepath.Join(paths.ApidDir, apid.ServerCertFile), filepath.Join(paths.ApidDir, apid.ServerKeyFile))
}

// apiServerReady reports whether the API server of this machine is ready.
func apiServerReady(services *supervise.Manager) bool {
	list, _ := services.Status().Get()
	return supervise.Find(list, nodespec.ServiceAPI).ComponentReady(componentAPIServer)
}

// componentAPIServer is the component name of the API server.
const componentAPIServer = "kube-apiserver"

// ownAddresses returns all addresses of the machine.
func ownAddresses(state network.State) []netip.Addr {
	var own []netip.Addr
	for _, l := range state.Links {
		for _, a := range l.Addresses {
			own = append(own, a.Prefix.Addr())
		}
	}
	return own
}

func newIdentity(m *machine) *identity.Identity {
	return identity.New(identity.Deps{
		Name:   network.DefaultHostname,
		Stored: identity.Files{Key: paths.MachineKey, Cert: paths.MachineCert, DirMode: 0o700},
		// other users need access to the directory
		Memory:  identity.Files{Key: paths.Run + "/identity.key", Cert: paths.Run + "/identity.crt", DirMode: 0o755},
		Console: m.reports.events.LogConsole,
	})
}

func newEtcd(m *machine) *etcd.Manager {
	d := etcd.Deps{
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) etcd.Config {
			return etcd.Config{Config: now.Config, OnTrial: now.OnTrial(), Egress: nodeplan.Egress(now.Config)}
		}),
		Started:        m.reports.progress.Started(),
		Stopping:       m.power.Running(),
		Command:        m.processes.commands.run,
		ReadCommand:    m.processes.commands.read,
		Services:       m.processes.services,
		LockUpgrade:    m.upgrade.Controller.TryLock,
		UpgradePending: func() error { return m.upgrade.Controller.Record().Undecided() },
		FreeSpace:      func() (int64, error) { return upgrade.FreeSpace(paths.Data) },
		DataReplaced:   m.members.NodeGC.RestartAll,
		NameInUse:      m.members.NodeGC.Reassigned,
		DeleteNodes:    m.members.NodeGC.Delete,
		// An error means that the API server may still encrypt Secrets with a former key, because
		// its restart is pending. Without a pending restart it has the configured key: machined
		// writes the file with the key before it starts the API server.
		FormerKey: func(ctx context.Context) error {
			return m.config.reconciler.CheckRunning(ctx, m.config.active.Current().Config, nodespec.ServiceAPI)
		},
		Event: m.reports.events.Add,
	}
	if m.system.inMemory() {
		d.NotInstalled = notInstalled
	}
	return etcd.New(d)
}

func newImages(m *machine, containerd *grpc.ClientConn) *images.Manager {
	return images.New(images.Deps{
		Containerd: containerd,
		Running: cell.Map(m.processes.services.Status(), func(list []supervise.Status) bool {
			return supervise.Find(list, nodespec.ServiceContainerd).State == supervise.Running
		}),
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) images.Config {
			return images.Config{Config: now.Config, OnTrial: now.OnTrial()}
		}),
		UpgradePending: func() bool { return m.upgrade.Controller.Record().Undecided() != nil },
		PauseImage:     func() string { return m.system.release.PauseImage },
		Imported:       func() { m.reports.progress.Mark("images") },
		Peers:          func() []netip.Addr { now := m.config.active.Current(); return m.members.Peers.Others(now.Config) },
		Call:           m.members.Peers.Call,
		Dial: func(ctx context.Context, addr netip.Addr) (*client.Client, error) {
			c, _, err := m.members.Peers.Dial(ctx, addr)
			return c, err
		},
		Serve:     machinedapi.Serve(m.power.Running().Done()),
		Egress:    func() egress.Config { return egressOf(m) },
		Extension: m.domains.extensions.Open,
		Stopping:  m.power.Running(),
		Event:     m.reports.events.Add,
	})
}

// containerdReady returns the error for calls that need containerd, while containerd does not run.
func containerdReady(services *supervise.Manager) error {
	list, _ := services.Status().Get()
	return images.CheckContainerd(supervise.Find(list, nodespec.ServiceContainerd).State)
}

func newPairing(m *machine) *ownership.Pairing {
	return ownership.New(ownership.Deps{
		Lock: func() (unlock func(), busy string) {
			if !m.config.active.TryLock() {
				return nil, "a configuration is being applied; try again"
			}
			unlockWrites, ok := m.upgrade.Controller.TryLock()
			if !ok {
				m.config.active.Unlock()
				return nil, "an installation, upgrade, rollback or restore is in progress; pair with the machine when it has ended"
			}
			m.config.reconciler.Lock()
			return func() {
				m.config.reconciler.Unlock()
				unlockWrites()
				m.config.active.Unlock()
			}, ""
		},
		Config:     func() (*config.Config, string) { now := m.config.active.Current(); return now.Config, now.Source },
		Unreadable: func(c *config.Config) bool { return c == nil && !m.system.inMemory() && m.config.active.HasStored() },
		Stored:     func() bool { return m.domains.disks.StorageProblem() == "" },
		Activate: func(ctx context.Context, c *config.Config) error {
			state, _ := m.domains.network.State.Get()
			return m.config.reconciler.ConfigureAPILocked(ctx, c, state)
		},
		Record:        m.reports.auditLog.Record,
		RecordRefused: m.reports.auditLog.RecordRefused,
		Event:         m.reports.events.From("pairing"),
		Console:       m.reports.events.LogConsole,
	})
}

func newSuspended(m *machine) *suspend.Manager {
	d := suspend.Deps{
		Dir:            paths.SuspendedObjects,
		Config:         func() *config.Config { now := m.config.active.Current(); return now.Config },
		StorageProblem: m.domains.disks.StorageProblem,
		Command:        m.processes.commands.run,
		Stopping:       m.power.Running(),
		Event:          m.reports.events.From("cluster"),
	}
	if m.system.inMemory() {
		d.NotInstalled = notInstalled
	}
	return suspend.New(d)
}
