package main

import (
	"context"
	"time"

	"github.com/orlop-os/orlop/machined/boot"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// Boot lists the steps of the boot in order. If a step fails, the boot stops and the machine resets
// (package boot). A step with an optional resource (disk, network) reports the problem in the
// machine's state and does not fail.
var Boot = []boot.Step[*machine]{
	{Name: "release", Do: stepRelease}, // reads the build information of the image
	// sets the clock no earlier than the build
	{Name: "clock", Do: stepClock},
	// starts to read ahead the programs of a node; no step waits for it
	{Name: "programs", Do: stepPrograms},
	// mounts, control groups, kernel parameters, modules
	{Name: "host", Do: stepHost, Remaining: trialDeadline},
	// drivers for all devices, present and hot-plugged
	{Name: "devices", Do: stepDevices},
	// STATE and DATA: created on first boot, checked, mounted
	{Name: "storage", WaitsFor: "the disk", Do: stepStorage},
	// sets the clock no earlier than the time stored on STATE
	{Name: "time mark", Do: stepTimeMark},
	// starts and then supervises the trial of a new version, or completes a rollback
	{Name: "upgrade", Do: stepUpgrade, Remaining: func(*machine) time.Duration { return boot.Deadline }},
	// activates the configuration on STATE, else in the image, else on a boot medium, else none
	{Name: "configuration", Do: stepConfiguration},
	// the stored extensions of this version
	{Name: "extensions", Do: stepExtensions},
	{Name: "identity", Do: stepIdentity}, // the machine key
	// starts the network; the addresses can come later
	{Name: "network", Do: stepNetwork},
	{Name: "time", Do: stepTime}, // starts the time client; no step waits for it
	// the local socket and apid
	{Name: "api", Do: stepAPI},
	// installs a system that runs from memory, if the configuration on a boot medium requests it
	{Name: "install", Do: stepInstall},
	// the services that the configuration requires
	{Name: "services", WaitsFor: "a configuration, and an address", Do: stepServices},
}

// runBoot runs the steps of the boot.
func runBoot(ctx context.Context, m *machine) {
	boot.Run(ctx, Boot, m, boot.Deps{
		Stopping: m.power.Stopping,
		Enter:    m.reports.progress.Enter,
		Mark:     m.reports.progress.Mark,
		Console:  m.reports.events.LogConsole,
		Reset:    func(why string) { m.power.Perform(power.Request{To: power.Reboot, Why: why}) },
		Checking: func() bool { return boot.Checking("/proc") },
	})
}

// trialDeadline returns how long the boot of a version on trial may take after the step "host": the
// default upgrade deadline; 0 for other versions. "host" is the first step after which the EFI
// variables, which record the trial, are readable.
func trialDeadline(m *machine) time.Duration {
	if entry, trial := esp.CurrentTrial(); trial && entry.Version == m.system.release.Version {
		return config.DefaultUpgradeDeadline
	}
	return 0
}
