package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/uevent"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// The steps of boot.go, in their order.

func stepRelease(_ context.Context, m *machine) (err error) {
	m.system.release, err = readRelease()
	if err == nil {
		from := "slot " + m.system.slot
		if m.system.inMemory() {
			from = "from " + m.system.bootMedium
		}
		m.events.LogConsole(fmt.Sprintf("%s %s, profile %s, %s", m.system.release.Name, m.system.release.Version, m.system.release.Profile, from))
	}
	return err
}

func stepClock(_ context.Context, m *machine) error {
	built := time.Unix(m.system.release.BuildTime, 0)
	err := m.clock.notBefore(built, "the build of the system")
	m.clock.floor.Raise(built, time.Now())
	return err
}

// stepTimeMark raises the clock to the time stored on STATE and stores the time from now on. An
// error of reading or writing is reported, and the boot continues.
func stepTimeMark(ctx context.Context, m *machine) error {
	if problem, _ := m.disks.Problem().Get(); m.system.inMemory() || problem != "" {
		return nil
	}
	mark, err := timesync.ReadFloor(paths.TimeFloor, time.Unix(m.system.release.BuildTime, 0))
	if err != nil {
		m.events.LogConsole(err.Error())
	}
	m.panics.Restarter().Go(ctx, "time mark", func(ctx context.Context) {
		m.clock.floor.Run(ctx, paths.TimeFloor, mark, func(err error) { m.events.Add("time", "failure", err.Error()) })
	})
	if mark.Before(m.clock.floor.Now(time.Now())) {
		return nil
	}
	err = m.clock.notBefore(mark, "the time stored on STATE")
	m.clock.floor.Raise(mark, time.Now())
	return err
}

// clock is the state of the system clock.
type clock struct {
	status  *cell.Cell[timesync.Status]
	floor   *timesync.Floor // time that has certainly passed
	console func(line string)
}

func newClock(console func(line string)) clock {
	return clock{status: cell.New(timesync.Status{}), floor: timesync.NewFloor(time.Time{}, time.Now()), console: console}
}

// notBefore sets the clock to floor, a time that has certainly passed, if the clock shows an
// earlier time.
func (c clock) notBefore(floor time.Time, what string) error {
	before := time.Now()
	moved, err := timesync.Plausible(floor)
	if moved {
		c.console(fmt.Sprintf("the clock was behind, at %s; set it to %s, %s", before.UTC().Format(time.RFC3339), what, floor.UTC().Format(time.RFC3339)))
	}
	return err
}

// stepPrograms starts to read the programs of Kubernetes and containerd into memory, in sequence.
// They have 170 MiB, dm-verity hashes every block, and the node needs them in any case; while the
// disk is mounted and the network starts, one processor is idle. Measured under emulation: the node
// is Ready 3 s earlier, and the API of the machine answers 0.4 s later; a start after the API
// answers makes both later. The pages stay reclaimable. A machine that runs from memory has the
// programs in memory already and does not run them.
func stepPrograms(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		return nil
	}
	panics.Go("programs", func() {
		for _, program := range []string{paths.Orchestrator, paths.Containerd} {
			if err := readThrough(ctx, program); err != nil {
				m.events.Add("programs", "failure", err.Error())
			}
		}
	})
	return nil
}

// readThrough reads a file to its end and discards the content; the kernel caches the pages.
func readThrough(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("programs: cannot read ahead: %w", err)
	}
	defer f.Close()
	buffer := make([]byte, 128<<10)
	for ctx.Err() == nil {
		if _, err := f.Read(buffer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("programs: cannot read ahead: %w", err)
		}
	}
	return nil
}

func stepHost(ctx context.Context, m *machine) error {
	facts, err := m.system.kernel.ReadFacts()
	if err != nil {
		return err
	}
	m.system.hardware = facts
	if facts.Memory < transition.MinMemory {
		m.events.LogConsole(fmt.Sprintf("memory: %d MiB are too little for Kubernetes; give the machine at least %d MiB", facts.Memory>>20, transition.MinMemory>>20))
	}
	// An error (for example a parameter that this kernel does not have) is reported as an event and
	// does not stop the boot.
	if err := m.reconciler.ConfigureHost(ctx, m.facts.hostConfig(nil)); err != nil {
		m.events.LogConsole(err.Error())
	}
	return nil
}

// stepDevices loads drivers, for the devices at boot and for devices that are plugged in later.
func stepDevices(ctx context.Context, m *machine) error {
	ready := make(chan struct{})
	failed := make(chan error, 1)
	loader := &uevent.Loader{
		Sys: "/sys", Index: m.system.kernel.Modules,
		Each: func(e *uevent.Event) {
			if e == nil || e.Subsystem == "input" {
				m.power.InputAdded()
			}
			if e == nil || e.Subsystem == "block" {
				m.disks.Wake()
			}
		},
		Report: func(message string, err error) {
			if err != nil {
				m.events.Add("devices", "failure", message+": "+err.Error())
				return
			}
			m.events.Add("devices", "operation", message)
		},
	}
	go func() {
		failed <- panics.Do("devices", func() error { return loader.Run(ctx, sync.OnceFunc(func() { close(ready) })) })
	}()
	select {
	case <-ready:
	case err := <-failed:
		return fmt.Errorf("devices: %w", err)
	}
	m.power.InputAdded() // The host step loads drivers too, before the reader listens.
	panics.Go("devices", func() {
		if err := <-failed; ctx.Err() == nil {
			m.events.LogConsole(fmt.Sprintf("devices: new devices are not detected any more: %v", err))
		}
	})
	return nil
}

// notInstalled explains why a machine that runs from memory stores nothing.
const notInstalled = "the system runs from memory; it writes to no disk before its installation"

// stepStorage mounts STATE and DATA. Without them the machine continues in maintenance: it has an
// address and an API that reports the problem, and stores nothing. A machine that is not installed
// only reads its disks.
func stepStorage(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		m.disks.Problem().Set(notInstalled)
		m.panics.Restarter().Go(ctx, "disks", m.disks.Watch)
		return nil
	}
	if err := m.disks.SetUp(ctx, disk.Config{}); err != nil {
		m.events.LogConsole("storage: " + err.Error())
	}
	m.panics.Restarter().Go(ctx, "disks", m.disks.Watch)
	m.panics.Restarter().Go(ctx, "file systems", m.disks.WatchErrors)
	return nil
}

// stepConfiguration loads the configuration. If the stored configuration is unreadable, the machine
// goes into maintenance and reports the reason, and its operator can apply another configuration.
//
// The nftables rules are installed before the network starts.
func stepConfiguration(ctx context.Context, m *machine) error {
	loadConfiguration(ctx, m)
	now := m.active.Current()
	if err := m.reconciler.ConfigureFirewall(ctx, now.Config); err != nil {
		m.events.LogConsole(err.Error())
	}
	return nil
}

func loadConfiguration(ctx context.Context, m *machine) {
	// after a rollback the staged configuration belongs to the other version
	by := m.active.Boot(!m.upgrade.Controller.Record().BeingReplaced(m.system.release.Version))
	a, from, err := m.active.Load()
	if err != nil {
		problem := fmt.Sprintf("%s cannot be used: %v", from, err)
		m.events.LogConsole("configuration: " + problem + "; apply a new one")
		m.active.Cell().Set(activeconfig.Active{Problem: problem})
		return
	}
	if a.Config != nil {
		m.events.Add("config", "config", "loaded from "+from)
		m.active.Cell().Set(a)
		m.active.AddToHistory(a.Documents, by)
		return
	}
	m.active.AdoptSeed(ctx)
	m.panics.Restarter().Go(ctx, "media", func(ctx context.Context) { watchSeeds(ctx, m) })
	if now := m.active.Current(); now.Config == nil {
		m.events.LogConsole("no configuration yet; waiting for one over the API, or on a medium labeled ORLOPCFG or cidata")
	}
}

// watchSeeds adopts a configuration from a medium that is plugged in later, and installs to the
// disk that it selects.
func watchSeeds(ctx context.Context, m *machine) {
	for w := m.disks.State().Watch(); ; {
		if _, _, err := w.Next(ctx); err != nil {
			return
		}
		m.active.AdoptSeed(ctx)
		m.installUnattended(ctx)
	}
}

// stepIdentity reads the machine key. If only DATA has an error, STATE is mounted, and the machine
// retains its key.
func stepIdentity(_ context.Context, m *machine) error {
	hasStorage := true
	if why, _ := m.disks.Problem().Get(); why != "" {
		_, mounted, err := mount.At(paths.State)
		hasStorage = err == nil && mounted
	}
	if err := m.identity.Read(hasStorage); err != nil {
		return err
	}
	m.members.Worker.Load()
	return nil
}

// networkRetry is the delay after the network's socket to the kernel broke; see
// network.Controller.Run.
const networkRetry = time.Second

func stepNetwork(ctx context.Context, m *machine) error {
	now := m.active.Current()
	m.network.Config.Set(nodeplan.Network(now.Config))
	go func() {
		for ctx.Err() == nil {
			err := panics.Do("network", func() error { return m.network.Controller.Run(ctx) })
			m.events.Add("network", "failure", fmt.Sprint("stopped, and restarts: ", err))
			select {
			case <-time.After(networkRetry):
			case <-ctx.Done():
			}
		}
	}()
	return nil
}

func stepTime(ctx context.Context, m *machine) error {
	m.panics.Restarter().Go(ctx, "time", func(ctx context.Context) {
		timesync.Run(ctx, timesync.Deps{
			Servers: m.network.TimeServers, Status: m.clock.status, Clock: timesync.SystemClock(), Floor: m.clock.floor,
			Log: func(line string) { m.events.Add("time", "operation", line) },
		})
	})
	return nil
}

// stepAPI opens the local socket and starts apid.
func stepAPI(ctx context.Context, m *machine) error {
	if err := m.auditLog.Open(auditDirs(m.disks)); err != nil {
		m.events.LogConsole(err.Error() + "; mutating calls are refused until it can be written")
	}
	server := newAPI(m).NewServer(machinedapi.Interceptor{AuditLog: m.auditLog, Audited: apid.Mutates(), RejectUnclaimed: m.pairing.RejectUnclaimed})
	listener, err := machinedapi.Listen(paths.MachinedSocket)
	if err != nil {
		return err
	}
	go func() {
		if err := panics.Do("the local API", func() error { return server.Serve(listener) }); err != nil {
			m.events.LogConsole(fmt.Sprintf("api: the local socket failed: %v; resetting", err))
			m.power.Perform(power.Request{To: power.Reboot, Why: "the local API failed"})
		}
	}()
	now := m.active.Current()
	if err := m.reconciler.ConfigureAPI(ctx, now.Config, network.State{}); err != nil {
		// a machine without an operator still runs its configuration
		m.events.LogConsole(err.Error())
	}
	return m.services.Set([]supervise.Service{nodeplan.Apid()})
}

// auditDirs returns the directories of the audit log: on STATE, or in memory without STATE.
func auditDirs(disks *disk.Controller) machinedapi.AuditDirs {
	if why, _ := disks.Problem().Get(); why != "" {
		return machinedapi.AuditDirs{Changes: paths.AuditInMemory, Refused: paths.AuditInMemory + "-refused", InProgress: paths.AuditInMemory + "-in-progress"}
	}
	return machinedapi.AuditDirs{Changes: paths.Audit, Refused: paths.AuditRefused, InProgress: paths.AuditInProgress}
}

func stepServices(ctx context.Context, m *machine) error {
	if m.system.inMemory() {
		m.progress.Enter("not installed", "being installed on a disk")
	}
	m.panics.Restarter().Go(ctx, "services", func(ctx context.Context) { m.progress.WatchServices(ctx, m.services) })
	m.panics.Restarter().Go(ctx, "images", m.images.RunImport)
	if !m.system.inMemory() {
		m.panics.Restarter().Go(ctx, "artifacts", m.images.RunArtifacts)
	}
	m.panics.Restarter().Go(ctx, "configuration", m.reconciler.Run)
	m.panics.Restarter().Go(ctx, "membership", m.members.Worker.Run)
	m.panics.Restarter().Go(ctx, "removal", m.members.Worker.RunRemoval)
	if !m.system.inMemory() { // a system that is not installed is unclaimed and ships no logs
		m.panics.Restarter().Go(ctx, "log-shipping", m.logShipping.Run)
	}
	m.panics.Restarter().Go(ctx, "trial", m.upgrade.Controller.ResumeTrial)
	m.panics.Restarter().Go(ctx, "configuration on trial", m.active.WatchTrial)
	m.panics.Restarter().Go(ctx, "reach", m.active.WatchReach)
	m.panics.Restarter().Go(ctx, "pace of connections", newConnLimit(m).Install)
	m.panics.Restarter().Go(ctx, "revocations", m.members.Sync.Run)
	m.panics.Restarter().Go(ctx, "Nodes of removed machines", m.members.NodeGC.Run)
	m.panics.Restarter().Go(ctx, "snapshots", func(context.Context) { m.etcd.RunSchedule() })
	m.panics.Restarter().Go(ctx, "sending snapshots", func(context.Context) { m.etcd.RunUploads() })
	return nil
}
