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
	"github.com/orlop-os/orlop/pkg/esp"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Decision is one thing that happens at boot.
type Step struct {
	Name string
	// WaitsFor says what the step may have to wait for, as the console shows it; empty if for nothing
	// but itself.
	WaitsFor string
	Do       func(ctx context.Context, m *machine) error
}

// Boot is what happens at boot, in order. A step that fails stops the boot, and the machine resets
// (see boot); steps that can do without (no disk, no network) say so in the machine's state and do
// not fail.
var Boot = []Step{
	{"release", "", stepRelease}, // what image is this
	// the clock is never earlier than the build
	{"clock", "", stepClock},
	// begins to read what a node runs; nothing waits for it
	{"programs", "", stepPrograms},
	// mounts, control groups, kernel parameters, modules
	{"host", "", stepHost},
	// drivers for everything that is plugged in, now and later
	{"devices", "", stepDevices},
	// STATE and DATA: made on first boot, checked, mounted
	{"storage", "the disk", stepStorage},
	// nor earlier than what STATE remembers
	{"time mark", "", stepTimeMark},
	// a new version on trial, or back from one that failed
	{"upgrade", "", stepUpgrade},
	// from STATE, else from the image, else from a medium, else none yet
	{"configuration", "", stepConfiguration},
	{"identity", "", stepIdentity}, // the machine's own key
	// begins; an address comes when it comes
	{"network", "", stepNetwork},
	{"time", "", stepTime}, // begins; nothing waits for it
	// the local socket, and apid in front of it
	{"api", "", stepAPI},
	// from memory onto a disk, if a medium's configuration asks for it
	{"install", "", stepInstall},
	// everything that follows from a configuration
	{"services", "a configuration, and an address", stepFollow},
}

// bootDeadline bounds the boot: a step that hangs longer than this is a fault, and the machine
// resets. Checking a large DATA takes the longest; ext4 replays its journal in seconds, and a full
// check of 10 TB takes about ten minutes.
const bootDeadline = 30 * time.Minute

// checkDeadline is how long all may take while e2fsck works: a disk that is slow, or has very many
// files, takes hours, and a reset would have it begin anew, for ever.
const checkDeadline = 24 * time.Hour

// failPause is how long a failure stays on the console before the machine resets.
const failPause = 10 * time.Second

// boot does the steps. When one fails the machine says which and why, and resets: another try, or
// another slot, may do better, and a machine that stands still helps nobody.
func (m *machine) boot(ctx context.Context) {
	began, deadline := time.Now(), time.NewTimer(bootDeadline)
	defer deadline.Stop()
	m.mark("machined")
	for _, s := range Boot {
		if m.going.Load() != nil { // somebody pressed the button
			return
		}
		m.enter(s.Name, s.WaitsFor)
		done := make(chan error, 1)
		go func() { done <- panics.Do("boot step "+s.Name, func() error { return s.Do(ctx, m) }) }()
		err := m.awaitStep(ctx, done, deadline, began)
		if err != nil {
			m.say(fmt.Sprintf("boot: %s: %v; resetting in %v", s.Name, err, failPause))
			<-time.After(failPause)
			m.takeDown(powerRequest{to: power.Reboot, why: "boot: " + s.Name + " failed"})
			return
		}
		m.mark(s.Name)
		switch s.Name {
		// the firmware's variables can be read: a version on trial is given no longer than it has
		// for everything else
		case "host":
			if _, trial := esp.CurrentTrial(); trial {
				deadline.Reset(config.DefaultUpgradeDeadline)
			}
		case "upgrade": // which watches over the trial from here on
			deadline.Reset(bootDeadline)
		}
	}
}

// awaitStep waits for a step, for as long as the boot may take.
func (m *machine) awaitStep(ctx context.Context, done <-chan error, deadline *time.Timer, began time.Time) error {
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			took := time.Since(began).Round(time.Minute)
			if took >= checkDeadline || !checking("/proc") {
				return fmt.Errorf("not done within %v", took)
			}
			m.say(fmt.Sprintf("storage: a disk is still being checked (e2fsck), after %v; the machine goes on when that has ended", took))
			deadline.Reset(bootDeadline)
		}
	}
}

// checking tells whether e2fsck runs (proc_pid_comm(5)).
func checking(proc string) bool {
	all, _ := filepath.Glob(proc + "/[0-9]*/comm") // the pattern is a good one
	return slices.ContainsFunc(all, func(path string) bool {
		name, err := os.ReadFile(path)
		return err == nil && string(name) == "e2fsck\n"
	})
}
