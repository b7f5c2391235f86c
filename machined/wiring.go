package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/debug"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/pods"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/suspend"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// assemble makes machined's packages, each from its Deps.
func assemble(m *machine) {
	// NewClient does not resolve the address of a Unix socket, so it cannot fail. The connection
	// opens at first use.
	containerd, _ := grpc.NewClient("unix://"+paths.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	m.power = newPower(m, containerd)
	m.active = newActiveConfig(m)
	m.identity = newIdentity(m)
	m.members = membership.New(memberDeps(m)) // first, because the others use it
	m.upgrade = newUpgrade(m)
	m.install = newInstall(m)
	m.debug = newDebug(m)
	m.etcd = newEtcd(m)
	m.images = newImages(m, containerd)
	m.logShipping = newLogShipping(m)
	m.pairing = newPairing(m)
	m.facts = newFacts(m)
	m.reconciler = converge.New(convergeDeps(m))
}

// newAPI makes the services of the management API. A boot step calls it, after all packages are
// made.
func newAPI(m *machine) *machinedapi.API {
	return machinedapi.New(machinedapi.Deps{
		Machine: machineDeps(m),
		Config: machinedapi.ConfigDeps{
			Apply:    m.applyRequest,
			Confirm:  m.confirmTrial,
			Revision: m.active.Revision,
			History:  m.active.History,
		},
		Services:      m.services,
		KernelStarted: func() (time.Time, error) { return kernelStarted(m.system.kernel) },
		Cluster: machinedapi.ClusterDeps{
			Config: func() *config.Config { now := m.active.Current(); return now.Config },
			WatchHealth: func(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error {
				return reportHealth(ctx, m, each)
			},
			Members:      m.members.Server,
			JoinRequests: m.members.Requests,
			Suspended:    newSuspended(m),
		},
		Internal: machinedapi.InternalDeps{
			Pair:        m.pairing.Pair,
			RequestJoin: m.members.Requests.RequestJoin,
		},
		Upgrade: machinedapi.UpgradeDeps{
			Status:   cell.Map(m.upgrade.Controller.State(), m.upgrade.Controller.Status),
			Receiver: m.upgrade.Receiver,
			Server:   m.upgrade.Server,
			Rollback: m.upgrade.Controller.Rollback,
		},
		Audit:           machinedapi.AuditDeps{Log: m.auditLog, Stopping: m.power.Running().Done()},
		Certificates:    m.members.Server,
		Images:          m.images,
		ContainerdReady: func() error { return containerdReady(m.services) },
		Debug:           m.debug,
		Etcd:            m.etcd,
		Event:           m.events.Add,
	})
}

// newPower makes the controller of the shutdown. Its functions use packages that are made later.
func newPower(m *machine, containerd *grpc.ClientConn) *power.Controller {
	stopper := pods.New(pods.Deps{Services: m.services, Containerd: containerd, Console: m.events.LogConsole})
	d := power.Deps{
		StopPods:     stopper.Stop,
		StopServices: m.services.Shutdown,
		CloseLogs: func(ctx context.Context) error {
			err := m.logShipping.Close(ctx)
			m.debug.EndKernelLog(ctx)
			return err
		},
		Wipe: m.disks.Wipe,
		Reset: power.ResetDeps{
			Drain:       func() error { return m.upgrade.Drainer.Drain() },
			Uncordon:    func() { m.upgrade.Drainer.Uncordon() },
			CheckQuorum: func() error { return m.etcd.CheckQuorumWithout() },
			Leave:       func(by string) error { return m.etcd.Leave(by) },
		},
		Enter:   m.progress.Enter,
		Console: m.events.LogConsole,
	}
	if m.system.inMemory() {
		d.NotInstalled = notInstalled
	}
	return power.NewController(d)
}

func newConnLimit(m *machine) machinedapi.ConnLimit {
	return machinedapi.ConnLimit{
		PerSecond: apid.ConnectionsPerAddress,
		Burst:     apid.ConnectionBurst,
		SetRules:  firewall.NewSetRules(m.system.kernel.LoadModules, m.commands.reaper.RunCommand),
		Event:     m.events.Add,
	}
}

// machineDeps are the dependencies of service Machine.
func machineDeps(m *machine) machinedapi.MachineDeps {
	shutDown := func(to power.Mode) func(time.Duration, string) error {
		return func(grace time.Duration, why string) error {
			return m.power.Shutdown(power.Request{To: to, GracePeriod: grace, Why: why})
		}
	}
	return machinedapi.MachineDeps{
		Release:    func() buildinfo.Release { return m.system.release },
		Slot:       m.system.slot,
		BootMedium: m.system.bootMedium,
		Name:       func() string { return m.active.Current().MachineName() },
		Topics:     m.observable(),
		TailEvents: func(ctx context.Context, after uint64, follow bool, each func(*api.Event) error) error {
			return m.events.Tail(ctx, after, follow, func(e events.Event) error {
				return each(&api.Event{Cursor: e.Cursor, Time: timestamppb.New(e.Time), Source: e.Source, Kind: e.Kind, Message: e.Message})
			})
		},
		Reboot:       shutDown(power.Reboot),
		PowerOff:     shutDown(power.PowerOff),
		Reset:        m.power.Reset,
		PeerEndpoint: m.members.Peers.Endpoint,
	}
}

func newIdentity(m *machine) *identity.Identity {
	return identity.New(identity.Deps{
		Name:   network.DefaultHostname,
		Stored: identity.Files{Key: paths.MachineKey, Cert: paths.MachineCert, DirMode: 0o700},
		// other users need access to the directory
		Memory:  identity.Files{Key: paths.Run + "/identity.key", Cert: paths.Run + "/identity.crt", DirMode: 0o755},
		Console: m.events.LogConsole,
	})
}

func newDebug(m *machine) *debug.Tools {
	return debug.New(debug.Deps{
		Stopping:    m.power.Running().Done(),
		Services:    m.services.Services,
		Run:         m.commands.reaper.RunCommand,
		LoadModules: m.system.kernel.LoadModules,
		Started:     func() (time.Time, error) { return kernelStarted(m.system.kernel) },
		Event:       m.events.Add,
		Console:     m.events.LogConsole,
	})
}

// kernelStarted returns the start of the kernel.
func kernelStarted(kernel *host.Kernel) (time.Time, error) {
	system, err := kernel.ReadSystem()
	return system.Started, err
}

func newEtcd(m *machine) *etcd.Manager {
	d := etcd.Deps{
		Config: cell.Map(m.active.Cell(), func(now activeconfig.Active) etcd.Config {
			return etcd.Config{Config: now.Config, OnTrial: now.OnTrial()}
		}),
		Started:        m.progress.Started(),
		Stopping:       m.power.Running(),
		Command:        m.commands.run,
		ReadCommand:    m.commands.read,
		Services:       m.services,
		LockUpgrade:    m.upgrade.Controller.TryLock,
		UpgradePending: func() error { return m.upgrade.Controller.Record().Undecided() },
		FreeSpace:      func() (int64, error) { return upgrade.FreeSpace(paths.Data) },
		DataReplaced:   m.members.NodeGC.RestartAll,
		NameInUse:      m.members.NodeGC.Reassigned,
		DeleteNodes:    m.members.NodeGC.Delete,
		Event:          m.events.Add,
	}
	if m.system.inMemory() {
		d.NotInstalled = notInstalled
	}
	return etcd.New(d)
}

func newImages(m *machine, containerd *grpc.ClientConn) *images.Manager {
	return images.New(images.Deps{
		Containerd: containerd,
		Running: cell.Map(m.services.Status(), func(list []supervise.Status) bool {
			i := slices.IndexFunc(list, func(s supervise.Status) bool { return s.Name == nodeplan.ServiceContainerd })
			return i >= 0 && list[i].State == supervise.Running
		}),
		Config: cell.Map(m.active.Cell(), func(now activeconfig.Active) images.Config {
			return images.Config{Config: now.Config, OnTrial: now.OnTrial()}
		}),
		UpgradePending: func() bool { return m.upgrade.Controller.Record().Undecided() != nil },
		PauseImage:     func() string { return m.system.release.PauseImage },
		Imported:       func() { m.progress.Mark("images") },
		Peers:          func() []netip.Addr { now := m.active.Current(); return m.members.Peers.Others(now.Config) },
		Call:           m.members.Peers.Call,
		Dial: func(ctx context.Context, addr netip.Addr) (*client.Client, error) {
			c, _, err := m.members.Peers.Dial(ctx, addr)
			return c, err
		},
		Serve:    machinedapi.Serve(m.power.Running().Done()),
		Stopping: m.power.Running(),
		Event:    m.events.Add,
	})
}

func newLogShipping(m *machine) *logship.Shipper {
	return logship.New(logship.Deps{
		Config: cell.Map(m.active.Cell(), func(now activeconfig.Active) logship.Config {
			if now.Config == nil {
				return logship.Config{}
			}
			return logship.Config{Machine: now.Config.Machine.Metadata.Name, Receivers: now.Config.Machine.Spec.Logging.Receivers}
		}),
		Dir: func() string {
			if why, _ := m.disks.Problem().Get(); why != "" {
				return ""
			}
			return paths.LogShipping
		},
		AuditLogs: m.auditLog.Records,
		Events: logship.Events{
			Newest: func() uint64 { last, _ := m.events.Last().Get(); return last },
			Tail: func(ctx context.Context, after uint64, each func(logship.Event) error) error {
				return m.events.Tail(ctx, after, true, func(e events.Event) error {
					return each(logship.Event{Number: e.Cursor, Time: e.Time, Source: e.Source, Kind: e.Kind, Message: e.Message})
				})
			},
		},
		Services:  m.services,
		Restarter: m.panics.Restarter(),
		Event:     func(kind, message string) { m.events.Add("log-shipping", kind, message) },
	})
}

func newPairing(m *machine) *ownership.Pairing {
	return ownership.New(ownership.Deps{
		Lock: func() (unlock func(), busy string) {
			if !m.active.TryLock() {
				return nil, "a configuration is being applied; try again"
			}
			unlockWrites, ok := m.upgrade.Controller.TryLock()
			if !ok {
				m.active.Unlock()
				return nil, "an installation, upgrade, rollback or restore is in progress; pair with the machine when it has ended"
			}
			m.reconciler.Lock()
			return func() {
				m.reconciler.Unlock()
				unlockWrites()
				m.active.Unlock()
			}, ""
		},
		Config:     func() (*config.Config, string) { now := m.active.Current(); return now.Config, now.Source },
		Unreadable: func(c *config.Config) bool { return c == nil && !m.system.inMemory() && m.active.HasStored() },
		Stored:     func() bool { why, _ := m.disks.Problem().Get(); return why == "" },
		Activate: func(ctx context.Context, c *config.Config) error {
			state, _ := m.network.State.Get()
			return m.reconciler.ConfigureAPILocked(ctx, c, state)
		},
		Record:        m.auditLog.Record,
		RecordRefused: m.auditLog.RecordRefused,
		Event:         func(kind, message string) { m.events.Add("pairing", kind, message) },
		Console:       m.events.LogConsole,
	})
}

func newSuspended(m *machine) *suspend.Manager {
	d := suspend.Deps{
		Dir:            paths.SuspendedObjects,
		Config:         func() *config.Config { now := m.active.Current(); return now.Config },
		StorageProblem: func() string { why, _ := m.disks.Problem().Get(); return why },
		Command:        m.commands.run,
		Stopping:       m.power.Running(),
		Event:          func(kind, message string) { m.events.Add("cluster", kind, message) },
	}
	if m.system.inMemory() {
		d.NotInstalled = notInstalled
	}
	return suspend.New(d)
}

func convergeDeps(m *machine) converge.Deps {
	return converge.Deps{
		Config: cell.Map(m.active.Cell(), func(now activeconfig.Active) converge.Config {
			return converge.Config{Config: now.Config, Due: now.Due}
		}),
		Domains: converge.Domains{
			StorageProblem: func() string { why, _ := m.disks.Problem().Get(); return why },
			InMemory:       m.system.inMemory(),
			Firewall:       m.packets,
			Network:        m.network,
			Kernel:         m.system.kernel,
			HostFacts:      func() host.Facts { return m.system.hardware },
			HasIdentity:    func() bool { return m.identity.Load() != nil },
			UpdatePairing:  m.pairing.Update,
			Services:       m.services,
		},
		HostConfig: m.facts.hostConfig,
		APIFacts:   m.facts.api,
		NodeFacts:  m.facts.plan,
		Changes: converge.Changes{
			Membership: m.members.Worker.State.View().Changes(),
			Artifacts:  m.images.Artifacts().Changes(),
			Ledger:     m.members.Ledger.Changes().View().Changes(),
		},
		MemberProblem:       func() string { member, _ := m.members.Worker.State.Get(); return member.Problem },
		ConfigureRegistries: m.images.ConfigureRegistries,
		Enter:               m.progress.Enter,
		Stopping:            func() bool { return m.power.Stopping() },
		Event:               m.events.Add,
		Console:             m.events.LogConsole,
	}
}

func newActiveConfig(m *machine) *activeconfig.Manager {
	return activeconfig.New(activeconfig.Deps{
		Store:          configstore.Store{Dir: paths.Config},
		Embedded:       paths.EmbeddedConfig,
		StorageProblem: func() string { why, _ := m.disks.Problem().Get(); return why },
		InMemory:       m.system.inMemory(),
		Network:        activeconfig.Network{Config: m.network.Config, State: m.network.State},
		Seed: activeconfig.SeedDeps{
			Find: func(ctx context.Context) (*seed.Document, error) { return seed.Find(ctx, m.disks.Prober()) },
			Check: func(ctx context.Context, next *config.Config) error {
				if err := m.facts.checkMachine(next); err != nil {
					return err
				}
				return m.checkAccess(ctx, next.Cluster)
			},
			MissingLinks: m.network.Controller.MissingLinks,
		},
		Undecided: func() error { return m.upgrade.Controller.Record().Undecided() },
		Proves: func(c *config.Config, age string) bool {
			s, _ := m.reconciler.State().Get()
			return s.Proves(c, age, time.Now())
		},
		AwaitNetwork: func(ctx context.Context, c *config.Config) error { return m.reconciler.AwaitNetwork(ctx, c) },
		Reboot:       func(why string) error { return m.power.Shutdown(power.Request{To: power.Reboot, Why: why}) },
		Event:        func(kind, message string) { m.events.Add("config", kind, message) },
		Console:      m.events.LogConsole,
	})
}
