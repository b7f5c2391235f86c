package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// Step is a step of the boot.
type Step struct {
	Name string
	// WaitsFor names the resource for which the step may have to wait, for the console; empty if it
	// waits for no external resource.
	WaitsFor string
	Do       func(ctx context.Context, m *machine) error
}

// Boot lists the steps of the boot in order. If a step fails, the boot stops and the machine resets
// (see runSteps). A step with an optional resource (disk, network) reports the problem in the
// machine's state and does not fail.
var Boot = []Step{
	{"release", "", stepRelease}, // reads the build information of the image
	// sets the clock no earlier than the build
	{"clock", "", stepClock},
	// starts to read ahead the programs of a node; no step waits for it
	{"programs", "", stepPrograms},
	// mounts, control groups, kernel parameters, modules
	{"host", "", stepHost},
	// drivers for all devices, present and hot-plugged
	{"devices", "", stepDevices},
	// STATE and DATA: created on first boot, checked, mounted
	{"storage", "the disk", stepStorage},
	// sets the clock no earlier than the time stored on STATE
	{"time mark", "", stepTimeMark},
	// starts the trial of a new version, or completes a rollback
	{"upgrade", "", stepUpgrade},
	// from STATE, else from the image, else from a boot medium, else none
	{"configuration", "", stepConfiguration},
	// the stored extensions of this version
	{"extensions", "", stepExtensions},
	{"identity", "", stepIdentity}, // the machine key
	// starts; an address can come later
	{"network", "", stepNetwork},
	{"time", "", stepTime}, // starts; no step waits for it
	// the local socket and apid
	{"api", "", stepAPI},
	// from memory to a disk, if the configuration on a boot medium requests it
	{"install", "", stepInstall},
	// the services that the configuration requires
	{"services", "a configuration, and an address", stepServices},
}

// bootDeadline bounds the boot: if a step takes longer, the machine resets. The longest step is the
// check of a large DATA partition: ext4 replays its journal in seconds, and a full check of 10 TB
// takes about ten minutes.
const bootDeadline = 30 * time.Minute

// checkDeadline bounds the boot while e2fsck runs. A slow disk, or a disk with very many files,
// takes hours, and a reset would restart the check forever.
const checkDeadline = 24 * time.Hour

// failPause is the time for which the console shows a failure before the machine resets.
const failPause = 10 * time.Second

// runSteps runs the steps of the boot. If a step fails, the machine reports the step and its error
// and resets: another attempt, or another slot, can succeed, and a stopped machine helps no
// operator.
func runSteps(ctx context.Context, m *machine) {
	began, deadline := time.Now(), time.NewTimer(bootDeadline)
	defer deadline.Stop()
	m.reports.progress.Mark("machined")
	for _, s := range Boot {
		if m.power.Stopping() { // the power button was pressed
			return
		}
		m.reports.progress.Enter(s.Name, s.WaitsFor)
		done := make(chan error, 1)
		go func() { done <- panics.Do("boot step "+s.Name, func() error { return s.Do(ctx, m) }) }()
		err := awaitStep(ctx, done, deadline, began, m.reports.events.LogConsole)
		if err != nil {
			m.reports.events.LogConsole(fmt.Sprintf("boot: %s: %v; resetting in %v", s.Name, err, failPause))
			<-time.After(failPause)
			m.power.Perform(power.Request{To: power.Reboot, Why: "boot: " + s.Name + " failed"})
			return
		}
		m.reports.progress.Mark(s.Name)
		switch s.Name {
		// The EFI variables are readable from here on. A version on trial gets at most its upgrade
		// deadline for the whole boot.
		case "host":
			if entry, trial := esp.CurrentTrial(); trial && entry.Version == m.system.release.Version {
				deadline.Reset(config.DefaultUpgradeDeadline)
			}
		case "upgrade": // it supervises the trial from here on
			deadline.Reset(bootDeadline)
		}
	}
}

// awaitStep waits for a step until the boot deadline.
func awaitStep(ctx context.Context, done <-chan error, deadline *time.Timer, began time.Time, console func(line string)) error {
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			took := time.Since(began).Round(time.Minute)
			if took >= checkDeadline || !fsckRunning("/proc") {
				return fmt.Errorf("not done within %v", took)
			}
			console(fmt.Sprintf("storage: e2fsck still checks a disk after %v; the boot continues afterwards", took))
			deadline.Reset(bootDeadline)
		}
	}
}

// fsckRunning reports whether e2fsck runs (proc_pid_comm(5)).
func fsckRunning(proc string) bool {
	all, _ := filepath.Glob(proc + "/[0-9]*/comm") // the pattern is valid
	return slices.ContainsFunc(all, func(path string) bool {
		name, err := os.ReadFile(path)
		return err == nil && string(name) == "e2fsck\n"
	})
}
