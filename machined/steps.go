package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/apid"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/uevent"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The steps of boot.go, in their order.

func stepRelease(_ context.Context, m *machine) (err error) {
	m.system.release, err = buildinfo.Read(paths.BuildInfo)
	if err == nil {
		from := "slot " + m.system.slot
		if m.system.inMemory() {
			from = "from " + m.system.bootMedium
		}
		m.reports.events.LogConsole(fmt.Sprintf("%s %s, profile %s, %s", m.system.release.Name, m.system.release.Version, m.system.release.Profile, from))
	}
	return err
}

func stepClock(_ context.Context, m *machine) error {
	built := time.Unix(m.system.release.BuildTime, 0)
	return m.domains.clock.floor.SetClock(built, "the build of the system", m.reports.events.LogConsole)
}

// stepTimeMark raises the clock to the time stored on STATE, and starts to store the time there
// regularly. An error of reading or writing is reported, and the boot continues.
func stepTimeMark(ctx context.Context, m *machine) error {
	if m.system.inMemory() || m.domains.disks.StorageProblem() != "" {
		return nil
	}
	mark, err := timesync.ReadFloor(paths.TimeFloor, time.Unix(m.system.release.BuildTime, 0))
	if err != nil {
		m.reports.events.LogConsole(err.Error())
	}
	m.reports.panics.Restarter().Go(ctx, "time mark", func(ctx context.Context) {
		m.domains.clock.floor.Run(ctx, paths.TimeFloor, mark, func(err error) { m.reports.events.Add("time", "failure", err.Error()) })
	})
	if mark.Before(m.domains.clock.floor.Now(time.Now())) {
		return nil
	}
	return m.domains.clock.floor.SetClock(mark, "the time stored on STATE", m.reports.events.LogConsole)
}

// stepPrograms starts to read the programs of Kubernetes and containerd into memory, in sequence.
// Each node needs these 170 MiB, and dm-verity hashes every block of them. The hashes use a
// processor that is idle while the disk is mounted and the network starts. Under emulation, the
// node is Ready 3 s earlier with this step, and the API of the machine answers 0.4 s later. If this
// step ran only after the API answers, both would be later. The kernel can reclaim the pages. A
// machine that runs from memory has the programs in memory already and does not run them.
func stepPrograms(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		return nil
	}
	panics.Go("programs", func() {
		host.ReadAhead(ctx, []string{paths.Orchestrator, paths.Containerd}, func(err error) { m.reports.events.Add("programs", "failure", err.Error()) })
	})
	return nil
}

func stepHost(ctx context.Context, m *machine) error {
	facts, err := m.system.kernel.ReadFacts()
	if err != nil {
		return err
	}
	m.system.hardware = facts
	if facts.Memory < transition.MinMemory {
		m.reports.events.LogConsole(fmt.Sprintf("memory: %d MiB are too little for Kubernetes; give the machine at least %d MiB", facts.Memory>>20, transition.MinMemory>>20))
	}
	// An error (for example a parameter that this kernel does not have) is reported as an event and
	// does not stop the boot.
	if err := m.config.reconciler.ConfigureHost(ctx, m.config.facts.HostConfig(nil)); err != nil {
		m.reports.events.LogConsole(err.Error())
	}
	return nil
}

// stepDevices loads the drivers of the devices that are present at boot and of devices that are
// plugged in later.
func stepDevices(ctx context.Context, m *machine) error {
	loader := &uevent.Loader{
		Sys: "/sys", Index: m.system.kernel.Modules,
		Each: func(e *uevent.Event) {
			if e == nil || e.Subsystem == "input" {
				m.power.InputAdded()
			}
			if e == nil || e.Subsystem == "block" {
				m.domains.disks.Wake()
			}
			m.domains.encryption.deviceAdded(ctx, e, func(err error) {
				m.reports.events.LogConsole(err.Error())
				m.power.Perform(power.Request{To: power.Reboot, Why: "the TPM continues to release the keys of the disks"})
			})
		},
		Report: func(message string, err error) {
			if err != nil {
				m.reports.events.Add("devices", "failure", message+": "+err.Error())
				return
			}
			m.reports.events.Add("devices", "operation", message)
		},
	}
	err := loader.Start(ctx, func(err error) {
		m.reports.events.LogConsole(fmt.Sprintf("devices: new devices are not detected any more: %v", err))
	})
	if err == nil {
		m.power.InputAdded() // stepHost loaded input drivers before the loader listened
	}
	return err
}

// stepStorage mounts STATE and DATA. Without them the machine continues in maintenance: it has an
// address and an API that reports the problem, and stores nothing. A machine that is not installed
// only reads its disks.
func stepStorage(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		m.domains.disks.Problem().Set(notInstalled)
	} else {
		if err := m.domains.disks.SetUp(ctx, diskConfig(nil)); err != nil {
			m.reports.events.LogConsole("storage: " + err.Error())
		}
		m.reports.panics.Restarter().Go(ctx, "file systems", m.domains.disks.WatchErrors)
	}
	// If no volume is encrypted, SetUp has ended the phase already. Also in memory: a boot medium
	// has a signed boot image, too, and a configuration from any person. After an error, the
	// machine resets.
	if err := m.domains.encryption.endPhase(ctx); err != nil {
		return err
	}
	m.reports.panics.Restarter().Go(ctx, "disks", m.domains.disks.Watch)
	m.reports.panics.Restarter().Go(ctx, "wear", m.domains.wear.Run)
	return nil
}

// stepUpgrade loads the record of the last upgrade and the turn that the machine had while it was
// away. It runs before the configuration is loaded, because a rollback replaces the configuration.
func stepUpgrade(ctx context.Context, m *machine) error {
	m.upgrade.Controller.Load(ctx)
	if m.domains.disks.StorageProblem() == "" {
		m.guard.Load()
	}
	return nil
}

// stepConfiguration loads the configuration. If the stored configuration is unreadable, the machine
// goes into maintenance and reports the reason, and its operator can apply another configuration.
//
// It also installs the nftables rules, because the network starts after this step.
func stepConfiguration(ctx context.Context, m *machine) error {
	loadConfiguration(ctx, m)
	now := m.config.active.Current()
	if err := m.config.reconciler.ConfigureFirewall(ctx, now.Config); err != nil {
		m.reports.events.LogConsole(err.Error())
	}
	return nil
}

func loadConfiguration(ctx context.Context, m *machine) {
	// While it is undecided whether an upgrade replaces the running version, the staged
	// configuration belongs to the other version, so it does not become active.
	if none := m.config.active.Start(!m.upgrade.Controller.Record().BeingReplaced(m.system.release.Version)); !none {
		return
	}
	m.config.active.AdoptSeed(ctx)
	m.reports.panics.Restarter().Go(ctx, "media", func(ctx context.Context) { watchSeeds(ctx, m) })
	if now := m.config.active.Current(); now.Config == nil {
		m.reports.events.LogConsole("no configuration yet; waiting for one over the API, or on a medium labeled ORLOPCFG or cidata")
	}
}

// watchSeeds adopts a configuration from a medium that is plugged in later, and installs the system
// to the disk that the configuration selects.
func watchSeeds(ctx context.Context, m *machine) {
	for w := m.domains.disks.State().Watch(); ; {
		if _, _, err := w.Next(ctx); err != nil {
			return
		}
		m.config.active.AdoptSeed(ctx)
		installUnattended(ctx, m)
	}
}

// stepExtensions activates the stored extensions. It runs before the network starts, because
// extensions may contain network drivers. A problem is reported, and the boot continues.
func stepExtensions(_ context.Context, m *machine) error {
	if now := m.config.active.Current(); now.Config != nil && !m.system.inMemory() {
		m.domains.extensions.Activate(now.Config)
		m.domains.extensions.MakeStates()
	}
	return nil
}

// stepIdentity reads the machine key, from STATE if it is mounted. If only DATA has an error, STATE
// is mounted, and the machine retains its key.
func stepIdentity(_ context.Context, m *machine) error {
	if err := m.identity.Read(m.domains.disks.HasState()); err != nil {
		return err
	}
	m.members.Worker.Load()
	return nil
}

func stepNetwork(ctx context.Context, m *machine) error {
	now := m.config.active.Current()
	m.domains.network.Config.Set(nodeplan.Network(now.Config))
	m.domains.lldp.Load() // so that the first plan of the node contains the stored labels
	m.reports.panics.Restarter().Go(ctx, "LLDP", m.domains.lldp.Run)
	m.reports.panics.Restarter().Go(ctx, "DNS over TLS", m.domains.dns.Run)
	m.reports.panics.Restarter().Go(ctx, "network", func(ctx context.Context) {
		m.domains.network.Controller.Supervise(ctx, func(err error) {
			m.reports.events.Add("network", "failure", fmt.Sprint("stopped, and restarts: ", err))
		})
	})
	return nil
}

func stepTime(ctx context.Context, m *machine) error {
	m.reports.panics.Restarter().Go(ctx, "time", func(ctx context.Context) {
		timesync.Run(ctx, timesync.Deps{
			Sources: m.domains.network.TimeSources, PTP: timesync.SystemPTP(m.system.kernel.LoadModules), Status: m.domains.clock.status, Clock: timesync.SystemClock(), Floor: m.domains.clock.floor,
			Log: func(line string) { m.reports.events.Add("time", "operation", line) },
		})
	})
	return nil
}

// stepAPI opens the local socket and starts apid.
func stepAPI(ctx context.Context, m *machine) error {
	if err := m.reports.auditLog.Open(machinedapi.SystemAuditDirs(m.domains.disks.StorageProblem() == "")); err != nil {
		m.reports.events.LogConsole(err.Error() + "; mutating calls are refused until it can be written")
	}
	server := newAPI(m).NewServer(machinedapi.Interceptor{AuditLog: m.reports.auditLog, Audited: apid.Mutates(), RejectUnclaimed: m.pairing.RejectUnclaimed, CheckApproval: m.config.approvals.Check})
	listener, err := machinedapi.Listen(paths.MachinedSocket, paths.UserApid)
	if err != nil {
		return err
	}
	if err := errors.Join(serveObject(m), serveMetrics(m)); err != nil {
		m.reports.events.LogConsole(err.Error())
	}
	go func() {
		if err := panics.Do("the local API", func() error { return server.Serve(listener) }); err != nil {
			m.reports.events.LogConsole(fmt.Sprintf("api: the local socket failed: %v; resetting", err))
			m.power.Perform(power.Request{To: power.Reboot, Why: "the local API failed"})
		}
	}()
	now := m.config.active.Current()
	if err := m.config.reconciler.ConfigureAPI(ctx, now.Config, network.State{}); err != nil {
		// the boot continues: the machine runs its configuration even if no operator can call it
		m.reports.events.LogConsole(err.Error())
	}
	return m.processes.services.Set([]supervise.Service{nodeplan.Apid()})
}

// serveObject serves the machine's own object of Kubernetes. A failure does not affect the clients
// of apid.
func serveObject(m *machine) error {
	listener, err := machinedapi.Listen(paths.ObjectSocket, 0)
	if err != nil {
		return err
	}
	server := machinedapi.NewObjectServer(objectDeps(m), machinedapi.Interceptor{AuditLog: m.reports.auditLog, RejectUnclaimed: m.pairing.RejectUnclaimed})
	panics.Go("the socket for the machine object", func() {
		if err := server.Serve(listener); err != nil {
			m.reports.events.LogConsole(fmt.Sprintf("api: the socket for the machine object failed: %v; reboot the machine", err))
		}
	})
	return nil
}

// stepInstall starts the installation that the configuration of a boot medium requests, and reports
// disks with an installed system.
func stepInstall(ctx context.Context, m *machine) error {
	if !m.system.inMemory() {
		return nil
	}
	if err := m.install.ReportInstalled(ctx); err != nil {
		m.reports.events.LogConsole(err.Error())
		return nil
	}
	installUnattended(ctx, m)
	return nil
}

func stepServices(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		m.reports.progress.Enter("not installed", "being installed on a disk")
	}
	m.reports.panics.Restarter().Go(ctx, "services", func(ctx context.Context) { m.reports.progress.WatchServices(ctx, m.processes.services) })
	m.reports.panics.Restarter().Go(ctx, "images", m.images.RunImport)
	if !m.system.inMemory() {
		m.reports.panics.Restarter().Go(ctx, "artifacts", m.images.RunArtifacts)
		m.reports.panics.Restarter().Go(ctx, "extensions", m.domains.extensions.Run)
	}
	if !m.system.inMemory() { // starts before "configuration", which waits for the parts of DATA
		m.reports.panics.Restarter().Go(ctx, "volumes", m.domains.volumes.Run)
	}
	m.reports.panics.Restarter().Go(ctx, "configuration", m.config.reconciler.Run)
	m.reports.panics.Restarter().Go(ctx, "membership", m.members.Worker.Run)
	m.reports.panics.Restarter().Go(ctx, "removal", m.members.Worker.RunRemoval)
	if !m.system.inMemory() { // a system that is not installed is unclaimed and ships no logs
		m.reports.panics.Restarter().Go(ctx, "log-shipping", m.reports.shipping.Run)
	}
	m.reports.panics.Restarter().Go(ctx, "turn", m.guard.Run)
	m.reports.panics.Restarter().Go(ctx, "trial", m.upgrade.Controller.ResumeTrial)
	m.reports.panics.Restarter().Go(ctx, "configuration on trial", m.config.active.WatchTrial)
	m.reports.panics.Restarter().Go(ctx, "reach", m.config.active.WatchReach)
	m.reports.panics.Restarter().Go(ctx, "connection limit", newConnLimit(m).Install)
	m.reports.panics.Restarter().Go(ctx, "inventory", newReporter(m).Run)
	m.reports.panics.Restarter().Go(ctx, "waiting machines", m.domains.hosts.Run)
	m.reports.panics.Restarter().Go(ctx, "claims", m.domains.claims.Run)
	m.reports.panics.Restarter().Go(ctx, "health of the cluster", newHealthPublisher(m).Run)
	m.reports.panics.Restarter().Go(ctx, "revocations", m.members.Sync.Run)
	m.reports.panics.Restarter().Go(ctx, "Nodes of removed machines", m.members.NodeGC.Run)
	m.reports.panics.Restarter().Go(ctx, "snapshots", func(context.Context) { m.etcd.RunSchedule() })
	m.reports.panics.Restarter().Go(ctx, "upload of snapshots", func(context.Context) { m.etcd.RunUploads() })
	return nil
}
