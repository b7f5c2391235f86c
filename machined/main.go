// Command machined is PID 1 of Orlop OS: it converges the machine to its configuration, supervises
// the services and serves the management API behind apid.
//
// Files:
//
//	main.go            start and watchdog
//	boot.go            the boot table; steps.go its steps
//	machine.go         the state of machined; system.go the running system
//	wiring.go          the packages of machined, each made from its Deps
//	cluster.go         the same for the identity of the machine and its cluster
//	installation.go    the same for installations and upgrades, and the start of an installation
//	apply.go           how a configuration is applied
//	facts.go           the facts for packages transition and nodeplan
//	health.go          the state from which package health computes the health
//	metrics.go         the state from which package machinemetrics computes the metrics
//	state.go           the topics; screen.go the status on the console
//	commands.go        the programs that machined runs
//
// If its name is apid, the executable runs the listener of the API instead (package apid); if its
// name is metricsd, it serves the metrics (package metricsd); if its name is diskprobe, it examines
// a foreign disk (package diskprobe); if its name is bootcheck, it checks the signature of a boot
// image (package secureboot); if its name is attester, it talks to the TPM (package attest). One
// executable for all six means that the image holds the Go runtime and gRPC once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/metricsd"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "apid":
		os.Exit(apid.Main())
	case filepath.Base(paths.Metricsd):
		os.Exit(metricsd.Main())
	case filepath.Base(paths.Diskprobe):
		os.Exit(diskprobe.Main())
	case filepath.Base(paths.Bootcheck):
		os.Exit(secureboot.Main())
	case filepath.Base(paths.Attester):
		os.Exit(attest.Main())
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "machined: this program runs only as the first process of Orlop OS")
		os.Exit(1)
	}
	ctx := context.Background()
	m := newMachine()
	go m.processes.commands.reaper.Loop(ctx)
	panics.OnPanic(m.reports.panics.Add)
	showConsole(ctx, m)
	go feedWatchdog(m.power.Feeding(), m)
	go runSteps(ctx, m)
	loop(ctx, m)
}

// petInterval is the interval at which the watchdog is fed; the watchdog resets the machine after
// watchdog.Timeout.
const petInterval = 10 * time.Second

// loop is the main loop of PID 1 and never ends. It receives shutdown requests from signals and the
// power button.
func loop(ctx context.Context, m *machine) {
	// Ctrl-Alt-Del arrives as SIGINT if a keyboard is not disabled (machined/console), once the
	// kernel is told not to reboot by itself (reboot(2)).
	unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	m.reports.panics.Restarter().Go(ctx, "power button", m.power.WatchButtons)
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
func feedWatchdog(ctx context.Context, m *machine) {
	dog, err := watchdog.Inherit(os.Getenv(watchdog.FileEnv))
	if err != nil {
		m.reports.events.Add("watchdog", "failure", err.Error())
		return
	}
	if dog == nil {
		if dog = lateWatchdog(ctx); dog == nil {
			m.reports.events.Add("watchdog", "state", "this machine has no watchdog")
			return
		}
		m.reports.events.Add("watchdog", "state", "armed after its driver was loaded late")
	}
	answered := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			m.processes.services.Services()
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
			m.reports.progress.Stage().Get()
			m.reports.events.After(0)
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
				m.reports.events.LogConsole(err.Error())
			}
		},
	}.Run(ctx)
}
