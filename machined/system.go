package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/paths"
)

// system is the running version of the system and the machine that it runs on.
type system struct {
	release buildinfo.Release // read by stepRelease
	slot    string            // "A" or "B"; empty if the system runs from memory
	// boot medium if the system is not installed (bootenv.MediumMemory); empty if it runs from a
	// disk
	bootMedium string
	// hardware is the facts that stepHost read. They do not change afterwards: MemTotal can grow by
	// a page at run time (the kernel frees memory that only its start needed), and a plan that
	// followed it would never be done.
	hardware host.Facts
	kernel   *host.Kernel
}

func newSystem() system {
	return system{slot: os.Getenv("ORLOP_SLOT"), bootMedium: os.Getenv(bootenv.MediumEnv), kernel: host.NewKernel(host.ModuleIndex())}
}

// inMemory reports whether the system is not installed.
func (s *system) inMemory() bool { return s.bootMedium != "" }

// notInstalled explains why a machine that runs from memory stores nothing.
const notInstalled = "the system runs from memory; it writes to no disk before its installation"

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

// kernelStarted returns the start of the kernel.
func (s *system) kernelStarted() (time.Time, error) {
	now, err := s.kernel.ReadSystem()
	return now.Started, err
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
