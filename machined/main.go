// Command machined is PID 1 of Orlop OS: it converges the machine to its configuration, supervises
// the services and serves the management API behind apid.
//
// Files:
//
//	main.go            start; wiring.go the packages of machined
//	boot.go            the boot table; steps.go its steps
//	apply.go           how a configuration is applied
//	facts.go           the facts for packages transition and nodeplan
//	reencrypt.go       new encryption keys
//	upgrade.go         the environment of upgrades (machined/upgrade)
//	install.go         the installation of a system that runs from memory
//	members.go         the membership of the cluster (machined/membership)
//	kubernetes.go      helpers of the plan for a node (package nodeplan)
//	console.go         the status on the console; commands.go the programs that machined runs
//	state.go           the topics
//	health.go          the state from which package health computes the health
//
// If its name is apid, the executable runs the listener of the API instead (package apid); if its
// name is diskprobe, it examines a foreign disk (package diskprobe). One executable for all three
// means that the image holds the Go runtime and gRPC once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/activeconfig"
	machinedapi "github.com/orlop-os/orlop/machined/api"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/debug"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/etcd"
	"github.com/orlop-os/orlop/machined/events"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/install"
	"github.com/orlop-os/orlop/machined/logship"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/bootmedium"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/cgroup"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
	"github.com/orlop-os/orlop/pkg/watchdog"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "apid":
		os.Exit(apid.Main())
	case filepath.Base(paths.Diskprobe):
		os.Exit(diskprobe.Main())
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "machined: this program runs only as the first process of Orlop OS")
		os.Exit(1)
	}
	ctx := context.Background()
	m := newMachine()
	go m.commands.reaper.Loop(ctx)
	panics.OnPanic(m.panics.Add)
	m.showConsole(ctx)
	go m.feedWatchdog(m.power.Feeding())
	go m.boot(ctx)
	m.loop(ctx)
}

// machine is the state of machined. Each field has one owner.
type machine struct {
	system system
	facts  *facts

	events   *events.Log
	services *supervise.Manager
	network  converge.Network
	clock    clock
	progress *events.Progress
	panics   *events.Panics
	commands *commands
	identity *identity.Identity // machine key

	packets     *firewall.Filter
	auditLog    *machinedapi.AuditLog
	upgrade     *upgrade.Upgrade
	install     *install.Manager
	debug       *debug.Tools
	etcd        *etcd.Manager
	images      *images.Manager
	logShipping *logship.Shipper
	members     *membership.Members // membership of the cluster
	pairing     *ownership.Pairing
	reconciler  *converge.Reconciler
	power       *power.Controller

	active *activeconfig.Manager // active configuration
	disks  *disk.Controller
}

// system is the running version of the system and the machine that it runs on.
type system struct {
	release buildinfo.Release // read by stepRelease
	slot    string            // "A" or "B"; empty if the system runs from memory
	// boot medium if the system is not installed (bootmedium.Memory); empty if it runs from a disk
	bootMedium string
	// hardware is the facts that stepHost read. They do not change afterwards: MemTotal can grow by
	// a page at run time (the kernel frees memory that only its start needed), and a plan that
	// followed it would never be done.
	hardware host.Facts
	kernel   *host.Kernel
}

// inMemory reports whether the system is not installed.
func (s *system) inMemory() bool { return s.bootMedium != "" }

// newMachine makes all packages. It starts nothing.
func newMachine() *machine {
	m := &machine{
		system: system{slot: os.Getenv("ORLOP_SLOT"), bootMedium: os.Getenv(bootmedium.Env)},
		events: events.NewLog(),
	}
	m.auditLog = machinedapi.NewAuditLog(machinedapi.AuditLogDeps{
		Event:   func(kind, message string) { m.events.Add("audit", kind, message) },
		Console: m.events.LogConsole,
	})
	m.progress = events.NewProgress(userspaceStart(os.Getenv("ORLOP_USERSPACE_START")), func(message string) { m.events.Add("boot", "stage", message) })
	m.panics = newPanics(m)
	m.commands = newCommands()
	m.disks = disk.New(disk.Deps{
		Reaper:  m.commands.reaper,
		Mounted: func() { m.debug.StartKernelLog() },
		Event:   func(kind, message string) { m.events.Add("disk", kind, message) },
		Console: m.events.LogConsole,
	})
	m.services = supervise.NewManager(supervise.Config{
		Reaper: m.commands.reaper,
		Groups: cgroup.Tree(cgroup.Mount),
		Event:  func(service, kind, message string) { m.events.Add("service/"+service, kind, message) },
	})
	m.system.kernel = host.NewKernel(host.ModuleIndex())
	m.packets = firewall.NewFilter(firewall.NewSetRules(m.system.kernel.LoadModules, m.commands.reaper.RunCommand))
	m.network = newNetwork(m.events.Add)
	m.clock = newClock(m.events.LogConsole)
	assemble(m)
	return m
}

func newPanics(m *machine) *events.Panics {
	return events.NewPanics(func(kind, message string) { m.events.Add("panics", kind, message) }, m.auditLog.Record)
}

// newNetwork makes the controller of the network with its cells.
func newNetwork(event func(source, kind, message string)) converge.Network {
	n := converge.Network{Config: cell.New(network.Config{}), State: cell.New(network.State{}), TimeServers: cell.New([]string(nil))}
	n.Controller = network.New(network.Deps{
		Config: n.Config,
		State:  n.State,
		Files:  network.SystemFiles,
		Leases: paths.State + "/dhcp",
		Log:    func(line string) { event("network", "operation", line) },
	})
	return n
}

// userspaceStart converts the start of init, in nanoseconds on the monotonic clock
// (CLOCK_BOOTTIME), to a time.
func userspaceStart(ns string) time.Time {
	var began int64
	if _, err := fmt.Sscan(ns, &began); err != nil {
		return time.Now()
	}
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now.Nano() - began))
}

// readRelease reads the build information in the image.
func readRelease() (buildinfo.Release, error) {
	var r buildinfo.Release
	text, err := os.ReadFile(paths.BuildInfo)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Version == "" {
		err = errors.New("it has no version")
	}
	if err != nil {
		return r, fmt.Errorf("release: cannot read %s: %w", paths.BuildInfo, err)
	}
	return r, nil
}

// petInterval is the interval at which the watchdog is fed; the watchdog resets the machine after
// watchdog.Timeout.
const petInterval = 10 * time.Second

// loop is the main loop of PID 1 and never ends. It receives shutdown requests from signals and the
// power button.
func (m *machine) loop(ctx context.Context) {
	// Ctrl-Alt-Del arrives as SIGINT if a keyboard is not disabled (machined/console), once the
	// kernel is told not to reboot by itself (reboot(2)).
	unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	m.panics.Restarter().Go(ctx, "power button", m.power.WatchButtons)
	power.Signals(ctx, func(mode power.Mode, why string) {
		m.power.Shutdown(power.Request{To: mode, Why: why})
	})
	select {} // PID 1 must not end
}

// maxServicesSilence is the time for which the service manager may not answer while the watchdog is
// fed. A service that starts waits for the disk, which can be absent for more than a minute, for
// example when a SAN fails over.
const maxServicesSilence = 5 * time.Minute

// lateWatchdog arms a watchdog if its driver is loaded after init. Some watchdogs are devices that
// the driver of another device creates (i2c-i801 creates iTCO_wdt).
func lateWatchdog(ctx context.Context) *watchdog.Watchdog {
	tick := time.NewTicker(petInterval)
	defer tick.Stop()
	for range 6 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if dog, err := watchdog.Arm(watchdog.Device, watchdog.Timeout); err == nil {
			return dog
		}
	}
	return nil
}

// feedWatchdog feeds the watchdog that init armed while the central parts of machined (topics,
// events, service manager) answer.
func (m *machine) feedWatchdog(ctx context.Context) {
	dog, err := watchdog.Inherit(os.Getenv(watchdog.FileEnv))
	if err != nil {
		m.events.Add("watchdog", "failure", err.Error())
		return
	}
	if dog == nil {
		if dog = lateWatchdog(ctx); dog == nil {
			m.events.Add("watchdog", "state", "this machine has no watchdog")
			return
		}
		m.events.Add("watchdog", "state", "armed after its driver was loaded late")
	}
	answered := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			m.services.Services()
			select {
			case answered <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	last := time.Now()
	power.WatchdogFeeder{
		Every: petInterval, Pet: dog.Pet,
		Alive: func(context.Context) error {
			m.progress.Stage().Get()
			m.events.After(0)
			select {
			case <-answered:
				last = time.Now()
			default:
				if mute := time.Since(last); mute > maxServicesSilence {
					return fmt.Errorf("the services have not answered for %v", mute.Round(time.Second))
				}
			}
			return nil
		},
		Report: func(err error) {
			if err != nil {
				m.events.LogConsole("watchdog: not fed: " + err.Error())
			}
		},
	}.Run(ctx)
}
