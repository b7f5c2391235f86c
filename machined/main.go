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
//	features.go        the same for hardware, extensions, connections and waiting machines
//	away.go            the same for the operations after which the machine is away
//	reports.go         the same for the health of the cluster, the metrics and the console
//	installation.go    the same for installations and upgrades, and the start of an installation
//	attestation.go     the same for the TPM, and the claims of the machine
//	encryption.go      the same for the keys of the disks
//	apply.go           how a configuration is applied
//	health.go          the state from which package health reports the health
//	state.go           the topics
//
// If the executable's name is apid, it runs the listener of the API instead (package apid); with
// the name metricsd, it serves the metrics (package metricsd); with podlogd, it reads the logs of
// pods (package podlogd); with diskprobe, it examines a foreign disk (package diskprobe); with
// bootcheck, it checks the signature of a boot image (package secureboot); with attester, it talks
// to the TPM for an attestation (package attest); with sealer, for the keys of the disks (package
// diskkey). One executable for all eight means that the image holds the Go runtime and gRPC once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/apid"
	"github.com/orlop-os/orlop/machined/power"
	"github.com/orlop-os/orlop/metricsd"
	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/diskprobe"
	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/podlogd"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "apid":
		os.Exit(apid.Main())
	case filepath.Base(paths.Metricsd):
		os.Exit(metricsd.Main())
	case filepath.Base(paths.Podlogd):
		os.Exit(podlogd.Main())
	case filepath.Base(paths.Diskprobe):
		os.Exit(diskprobe.Main())
	case filepath.Base(paths.Bootcheck):
		os.Exit(secureboot.Main())
	case filepath.Base(paths.Attester):
		os.Exit(attest.Main())
	case filepath.Base(paths.Sealer):
		os.Exit(diskkey.Main())
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
	go power.FeedWatchdog(m.power.Feeding(), os.Getenv(watchdog.FileEnv), power.WatchdogDeps{
		Services: func() { m.processes.services.Services() },
		Reports:  func() { m.reports.progress.Stage().Get(); m.reports.events.After(0) },
		Event:    m.reports.events.From("watchdog"),
		Console:  m.reports.events.LogConsole,
	})
	go runBoot(ctx, m)
	loop(ctx, m)
}

// loop is the main loop of PID 1 and never ends. It receives shutdown requests from signals and the
// power button.
func loop(ctx context.Context, m *machine) {
	// After this call, the kernel sends SIGINT to PID 1 on Ctrl-Alt-Del, and does not reboot by
	// itself (reboot(2)). A keyboard that machined/console has disabled causes neither.
	unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	m.reports.panics.Restarter().Go(ctx, "power button", m.power.WatchButtons)
	power.Signals(ctx, func(mode power.Mode, why string) {
		m.power.Shutdown(power.Request{To: mode, Why: why})
	})
	select {} // PID 1 must not end
}
