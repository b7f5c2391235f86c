package main

import (
	"context"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/configcheck"
	"github.com/orlop-os/orlop/machined/configstore"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/debug"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/drain"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/facts"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/hosts"
	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/orchestrator"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/pods"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/repair"
	"github.com/orlop-os/orlop/machined/seed"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// newMachine makes the main types of all packages. It starts nothing.
func newMachine() *machine {
	m := &machine{system: newSystem(), reports: newReports()}
	m.processes = newProcesses(m.reports.events)
	m.domains = newDomains(m)
	assemble(m)
	return m
}

func newReports() reports {
	log := events.NewLog()
	r := reports{
		events:   log,
		progress: events.NewProgress(bootenv.Start(os.Getenv(bootenv.StartEnv)), func(message string) { log.Add("boot", "stage", message) }),
		object:   cell.New[*api.ReportedObject](nil),
		auditLog: machinedapi.NewAuditLog(machinedapi.AuditLogDeps{Event: log.From("audit"), Console: log.LogConsole}),
	}
	r.panics = events.NewPanics(log.From("panics"), r.auditLog.Record)
	return r
}

func newProcesses(log *events.Log) processes {
	reaper := supervise.NewReaper(nil)
	runner := orchestrator.New(reaper.RunCommand)
	p := processes{commands: commands{reaper: reaper, run: runner.Run, read: runner.Read}}
	p.services = supervise.NewManager(supervise.Config{
		Reaper: reaper,
		Groups: cgroup.Tree(cgroup.Mount),
		Event:  func(service, kind, message string) { log.Add("service/"+service, kind, message) },
	})
	return p
}

func newDomains(m *machine) domains {
	crypt := newEncryption(m)
	return domains{
		encryption: crypt,
		disks: disk.New(disk.Deps{
			Crypt: crypt.crypt, EndPhase: crypt.endPhase,
			Reaper:  m.processes.commands.reaper,
			Mounted: func() { m.debug.StartKernelLog() },
			Event:   m.reports.events.From("disk"),
			Console: m.reports.events.LogConsole,
			Mounts:  func() []mount.Mount { return host.Plan(host.Config{}, m.system.hardware).Mounts },
			ESP: disk.ESP{
				Path: func() string {
					path, _ := m.upgrade.ESP.Device() // empty if it is unknown
					return path
				},
				Check: func() error { return m.upgrade.ESP.Check() },
				Fault: func() string { return m.upgrade.ESP.Fault() },
			},
		}),
		packets: firewall.NewFilter(newSetRules(m)),
		network: newNetwork(m.reports.events.Add, m.system.kernel.LoadModules),
		clock:   newClock(),
	}
}

func newSetRules(m *machine) firewall.SetRules {
	return firewall.NewSetRules(m.system.kernel.LoadModules, m.processes.commands.reaper.RunCommand)
}

// newNetwork makes the controller of the network with its cells.
func newNetwork(event func(source, kind, message string), loadModules func(names ...string) error) converge.Network {
	n := converge.Network{Config: cell.New(network.Config{}), State: cell.New(network.State{}), TimeSources: cell.New(timesync.Sources{})}
	n.Controller = network.New(network.Deps{
		Config: n.Config,
		State:  n.State,
		Files:  network.SystemFiles,
		Leases: paths.Leases,
		Log:    func(line string) { event("network", "operation", line) },

		LoadModules: loadModules,
	})
	return n
}

// assemble makes machined's packages, each from its Deps.
func assemble(m *machine) {
	// NewClient resolves no address for a Unix socket, so it cannot fail. The connection opens at
	// the first use.
	containerd, _ := grpc.NewClient("unix://"+paths.ContainerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	m.power = newPower(m, containerd)
	m.config.active = newActiveConfig(m)
	m.config.approvals = newApprovals(m)
	m.domains.lldp = newLLDP(m)
	m.domains.dns = newResolver(m)
	m.domains.volumes = newVolumes(m)
	m.domains.wear = newWear(m)
	m.domains.extensions = newExtensions(m)
	m.domains.forwarder = newForwarder(m)
	m.identity = newIdentity(m)
	m.members = membership.New(memberDeps(m)) // made before the types below, which use m.members
	m.domains.claims = newClaims(m)
	m.domains.hosts = newHosts(m)
	m.reports.cluster = newClusterHealth(m)
	m.guard = newGuard(m)
	m.domains.drain = newDrainer(m)
	m.upgrade = newUpgrade(m)
	m.install = newInstall(m)
	m.debug = newDebug(m)
	m.etcd = newEtcd(m)
	m.images = newImages(m, containerd)
	m.reports.shipping = newLogShipping(m)
	m.pairing = newPairing(m)
	m.config.facts = newFacts(m)
	m.config.reconciler = converge.New(convergeDeps(m))
	m.config.applier = newApplier(m)
	m.reports.health = newHealth(m)
}

func newFacts(m *machine) *facts.Reader {
	return facts.New(facts.Deps{
		System: facts.System{
			Release: func() buildinfo.Release { return m.system.release }, Hardware: func() host.Facts { return m.system.hardware },
			InMemory: m.system.inMemory(), StorageProblem: m.domains.disks.StorageProblem, Kernel: m.system.kernel,
		},
		Links:    m.domains.network.Controller,
		Network:  func() network.State { state, _ := m.domains.network.State.Get(); return state },
		Volumes:  m.domains.volumes,
		Ledger:   m.members.Ledger,
		Identity: m.identity.Key,
		Member: func() nodeplan.Member {
			now, _ := m.members.Worker.State.Get()
			return nodeplan.Member{Joined: now.Joined, Removed: now.Removed, PodsStopped: now.PodsStopped, Machine: now.Certs.Machine, Node: now.Certs.Node}
		},
		Artifacts:     func() map[string]string { list, _ := m.images.Artifacts().Get(); return list },
		LLDPLabels:    func() map[string]string { list, _ := m.domains.lldp.Labels().Get(); return list },
		Extensions:    m.domains.extensions.Active,
		OpenForwarder: m.domains.forwarder.Open,
		Undecided:     func() error { return m.upgrade.Controller.Record().Undecided() },

		AcceptsInventories: hosts.AcceptsInventories,
	})
}

func newApplier(m *machine) *applier {
	return &applier{
		system: &m.system, disks: m.domains.disks, network: m.domains.network, clock: m.domains.clock, identity: m.identity, check: configcheck.Checker{Command: m.processes.commands.run},
		install: m.install, volumes: m.domains.volumes, etcd: m.etcd, power: m.power, guard: m.guard, active: m.config.active, facts: m.config.facts, reconciler: m.config.reconciler,
		approvals: m.config.approvals,
	}
}

// newAPI makes the services of the management API. A boot step calls it, after all packages are
// made.
func newAPI(m *machine) *machinedapi.API {
	return machinedapi.New(machinedapi.Deps{
		Machine: machineDeps(m),
		Config: machinedapi.ConfigDeps{
			Apply:    m.config.applier.request,
			Confirm:  m.config.applier.confirm,
			Revision: m.config.active.Revision,
			History:  m.config.active.History,
		},
		Services:      m.processes.services,
		KernelStarted: m.system.kernelStarted,
		Cluster: machinedapi.ClusterDeps{
			Config:        func() *config.Config { now := m.config.active.Current(); return now.Config },
			WatchHealth:   m.reports.health.Watch,
			ClusterHealth: m.reports.cluster,
			Members:       m.members.Server,
			DrainMember: func(node string, policy config.Drain, by string) (undo func(), err error) {
				return m.domains.drain.DrainMember(m.power.Running(), node, by, policy)
			},
			JoinRequests: m.members.Requests,
			Suspended:    newSuspended(m),
		},
		Internal: machinedapi.InternalDeps{
			Pair:        m.pairing.Pair,
			RequestJoin: m.members.Requests.RequestJoin,

			ReportInventory: m.domains.hosts.Report,
		},
		Upgrade: machinedapi.UpgradeDeps{
			Status:   cell.Map(m.upgrade.Controller.State(), m.upgrade.Controller.Status),
			Receiver: m.upgrade.Receiver,
			Server:   m.upgrade.Server,
			Rollback: m.upgrade.Controller.Rollback,
			Finalize: m.upgrade.Controller.Finalize,
		},
		Audit:           machinedapi.AuditDeps{Log: m.reports.auditLog, Stopping: m.power.Running().Done()},
		Certificates:    m.members.Server,
		Images:          m.images,
		ContainerdReady: func() error { return containerdReady(m.processes.services) },
		Debug:           m.debug,
		Etcd:            m.etcd,
		Attestation:     machinedapi.AttestationDeps{TPM: newAttester(m), Claims: func() (attest.Claims, error) { return claims(m) }},
		Event:           m.reports.events.Add,
	})
}

// objectDeps are the dependencies of the service for the machine's own object.
func objectDeps(m *machine) machinedapi.ObjectDeps {
	return machinedapi.ObjectDeps{
		Enabled:     func() bool { return m.config.active.Current().Config.HasMachineObjects() },
		Object:      m.reports.object,
		Release:     func() buildinfo.Release { return m.system.release },
		Upgrade:     cell.Map(m.upgrade.Controller.State(), m.upgrade.Controller.Status),
		Drain:       cell.Map(m.domains.drain.States(), drain.Own),
		WatchHealth: m.reports.health.Watch,
		ChangeRelease: func(ctx context.Context, r *api.ChangeReleaseRequest, by string) error {
			return m.upgrade.ChangeRelease(ctx, upgrade.Release{Version: r.Version, Image: r.Image, Peers: r.Peers}, by)
		},
		Repair: repair.Deps{
			Started: m.system.kernelStarted,
			Restart: m.processes.services.Restart,
			Reboot: func(ctx context.Context, by string) error {
				return m.power.Go(ctx, power.Away{To: power.Reboot, By: by})
			},
			Rollback: func(ctx context.Context, by string) error {
				_, err := m.upgrade.Controller.Rollback(ctx, false, by)
				return err
			},
		}.Do,
	}
}

// newPower makes the controller of the shutdown. Its functions read fields of m that are set later.
func newPower(m *machine, containerd *grpc.ClientConn) *power.Controller {
	stopper := pods.New(pods.Deps{Services: m.processes.services, Containerd: containerd, Console: m.reports.events.LogConsole})
	d := power.Deps{
		StopPods:     stopper.Stop,
		PodsGrace:    func() time.Duration { return nodeplan.PodsGrace(m.config.active.Current().Config) },
		StopServices: m.processes.services.Shutdown,
		CloseLogs: func(ctx context.Context) error {
			err := m.reports.shipping.Close(ctx)
			m.debug.EndKernelLog(ctx)
			return err
		},
		Wipe:    func(ctx context.Context, labels []string) error { return wipe(ctx, m, labels) },
		Away:    awayDeps(m),
		Enter:   m.reports.progress.Enter,
		Console: m.reports.events.LogConsole,
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
		SetRules:  newSetRules(m),
		Event:     m.reports.events.Add,
	}
}

// machineDeps are the dependencies of service Machine.
func machineDeps(m *machine) machinedapi.MachineDeps {
	return machinedapi.MachineDeps{
		Release:    func() buildinfo.Release { return m.system.release },
		Slot:       m.system.slot,
		BootMedium: m.system.bootMedium,
		Name:       func() string { return m.config.active.Current().MachineName() },
		Topics:     observable(m),
		TailEvents: func(ctx context.Context, after uint64, follow bool, each func(*api.Event) error) error {
			return m.reports.events.Tail(ctx, after, follow, func(e events.Event) error {
				return each(&api.Event{Cursor: e.Cursor, Time: timestamppb.New(e.Time), Source: e.Source, Kind: e.Kind, Message: e.Message})
			})
		},
		Reboot:       shutDown(m, power.Reboot),
		PowerOff:     shutDown(m, power.PowerOff),
		Reset:        shutDown(m, power.Reboot),
		CancelDrain:  m.domains.drain.Cancel,
		WipeDisk:     m.domains.volumes.WipeDisk,
		WipeVolume:   m.domains.volumes.WipeVolume,
		Recovery:     newRecovery(m),
		PeerEndpoint: m.members.Peers.Endpoint,
	}
}

func newDebug(m *machine) *debug.Tools {
	return debug.New(debug.Deps{
		Stopping:    m.power.Running().Done(),
		Services:    m.processes.services.Services,
		Run:         m.processes.commands.reaper.RunCommand,
		LoadModules: m.system.kernel.LoadModules,
		Started:     m.system.kernelStarted,
		Event:       m.reports.events.Add,
		Console:     m.reports.events.LogConsole,
	})
}

func newLogShipping(m *machine) *logship.Shipper {
	return logship.New(logship.Deps{
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) logship.Config { return nodeplan.LogShipping(now.Config) }),
		Dir: func() string {
			if m.domains.disks.StorageProblem() != "" {
				return ""
			}
			return paths.LogShipping
		},
		AuditLogs:       m.reports.auditLog.Records,
		KubernetesAudit: func() string { return nodeplan.KubernetesAudit(m.config.active.Current().Config) },
		Events: logship.Events{
			Newest: func() uint64 { last, _ := m.reports.events.Last().Get(); return last },
			Tail: func(ctx context.Context, after uint64, each func(logship.Event) error) error {
				return m.reports.events.Tail(ctx, after, true, func(e events.Event) error {
					return each(logship.Event{Number: e.Cursor, Time: e.Time, Source: e.Source, Kind: e.Kind, Message: e.Message})
				})
			},
		},
		Services: m.processes.services,
		Pods: logship.PodDeps{
			Positions: func() string {
				if m.domains.disks.StorageProblem() != "" {
					return ""
				}
				return paths.PodLogPositions
			},
			Listen: func() (net.Listener, error) { return machinedapi.Listen(paths.PodLogsSocket, paths.UserPodLogs) },
		},
		Restarter: m.reports.panics.Restarter(),
		Event:     m.reports.events.From("log-shipping"),
	})
}

func convergeDeps(m *machine) converge.Deps {
	return converge.Deps{
		Config: cell.Map(m.config.active.Cell(), func(now activeconfig.Active) converge.Config {
			return converge.Config{Config: now.Config, Due: now.Due}
		}),
		Domains: converge.Domains{
			DiskConfig:     diskConfig,
			StorageProblem: m.domains.disks.StorageProblem,
			InMemory:       m.system.inMemory(),
			Firewall:       m.domains.packets,
			Network:        m.domains.network,
			Kernel:         m.system.kernel,
			HostFacts:      func() host.Facts { return m.system.hardware },
			HasIdentity:    func() bool { return m.identity.Load() != nil },
			UpdatePairing:  m.pairing.Update,
			Services:       m.processes.services,
			Volumes:        m.domains.volumes,

			ExtensionChanges: m.domains.extensions.Changes,
		},
		HostConfig: m.config.facts.HostConfig,
		APIFacts:   m.config.facts.API,
		NodeFacts:  m.config.facts.Plan,
		Changes: converge.Changes{
			Membership: m.members.Worker.State.View().Changes(),
			Artifacts:  m.images.Artifacts().Changes(),
			Ledger:     m.members.Ledger.Changes().View().Changes(),
			LLDPLabels: m.domains.lldp.Labels().View().Changes(),
			Volumes:    m.domains.volumes.State().View().Changes(),
		},
		MemberProblem:       func() string { member, _ := m.members.Worker.State.Get(); return member.Problem },
		ConfigureRegistries: m.images.ConfigureRegistries,
		Enter:               m.reports.progress.Enter,
		Stopping:            func() bool { return m.power.Stopping() },
		Event:               m.reports.events.Add,
		Console:             m.reports.events.LogConsole,
	}
}

func newActiveConfig(m *machine) *activeconfig.Manager {
	return activeconfig.New(activeconfig.Deps{
		Store:          configstore.Store{Dir: paths.Config},
		Embedded:       paths.EmbeddedConfig,
		StorageProblem: m.domains.disks.StorageProblem,
		InMemory:       m.system.inMemory(),
		Network:        activeconfig.Network{Config: m.domains.network.Config, State: m.domains.network.State},
		Seed: activeconfig.SeedDeps{
			Find:  func(ctx context.Context) (*seed.Document, error) { return seed.Find(ctx, m.domains.disks.Prober()) },
			Owner: ownership.Owner,
			Check: func(ctx context.Context, next *config.Config) error {
				if err := m.config.facts.CheckMachine(next); err != nil {
					return err
				}
				return m.config.applier.check.Access(ctx, next)
			},
			MissingLinks: m.domains.network.Controller.MissingLinks,
		},
		Undecided: func() error { return m.upgrade.Controller.Record().Undecided() },
		Proves: func(c *config.Config, age string) bool {
			s, _ := m.config.reconciler.State().Get()
			return s.Proves(c, age, time.Now())
		},
		AwaitNetwork: func(ctx context.Context, c *config.Config) error { return m.config.reconciler.AwaitNetwork(ctx, c) },
		WaitingServices: func(ctx context.Context, c *config.Config) ([]string, error) {
			return m.config.reconciler.WaitingServices(ctx, c)
		},
		UnrestoredSysctls: func(c *config.Config, names []string) ([]string, error) {
			return m.system.kernel.DifferentSysctls(m.config.facts.HostConfig(c), m.system.hardware, names)
		},
		Reboot:  func(why string) error { return m.power.Shutdown(power.Request{To: power.Reboot, Why: why}) },
		Event:   m.reports.events.From("config"),
		Console: m.reports.events.LogConsole,
	})
}
