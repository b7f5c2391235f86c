package main

import (
	"os"
	"time"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/timesync"
	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/cell"
)

// system is the running version of the system and the machine that it runs on.
type system struct {
	release buildinfo.Release // read by stepRelease
	slot    string            // "A" or "B"; empty if the system runs from memory
	// boot medium if the system is not installed (bootenv.MediumMemory); empty if it runs from a
	// disk
	bootMedium string
	// hardware has the facts that stepHost has read. They are not read again, because MemTotal can
	// grow by a page at run time (the kernel frees memory that only its start needed). A plan from
	// the current MemTotal would never converge.
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

// kernelStarted returns the start of the kernel.
func (s *system) kernelStarted() (time.Time, error) {
	now, err := s.kernel.ReadSystem()
	return now.Started, err
}

// clock is the state of the system clock.
type clock struct {
	status *cell.Cell[timesync.Status]
	floor  *timesync.Floor // time that has certainly passed
}

func newClock() clock {
	return clock{status: cell.New(timesync.Status{}), floor: timesync.NewFloor(time.Time{}, time.Now())}
}
