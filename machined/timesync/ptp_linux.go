package timesync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ClockPrefix marks the entry of a PTP clock in a list of servers. The name of the clock follows:
// the content of /sys/class/ptp/*/clock_name.
const ClockPrefix = "ptp:"

// clockModules maps the names of clocks to their kernel modules. It has the modules that no device
// event loads, because no device exists for these clocks.
var clockModules = map[string]string{"KVM virtual PTP": "ptp_kvm"}

// PTPClocks finds and reads the PTP clocks of the kernel (Documentation/driver-api/ptp.rst).
type PTPClocks struct {
	Sys         string // the directory of clocks, /sys/class/ptp on a machine
	LoadModules func(names ...string) error
	// Read opens a device, such as ptp0, and calls use with a function that reads the clock of the
	// device.
	Read func(device string, use func(read func() (time.Time, error)) error) error
}

// SystemPTP returns the PTP clocks of the machine.
func SystemPTP(load func(names ...string) error) PTPClocks {
	return PTPClocks{Sys: "/sys/class/ptp", LoadModules: load, Read: readDevice}
}

func readDevice(device string, use func(func() (time.Time, error)) error) error {
	f, err := os.Open(filepath.Join("/dev", device))
	if err != nil {
		return fmt.Errorf("cannot open: %w", err)
	}
	defer f.Close()
	clock := unix.FdToClockID(int(f.Fd()))
	return use(func() (time.Time, error) {
		var ts unix.Timespec
		if err := unix.ClockGettime(clock, &ts); err != nil {
			return time.Time{}, fmt.Errorf("cannot read %s: %w", f.Name(), err)
		}
		return time.Unix(ts.Unix()), nil
	})
}

// sample reads the clock with a name, and loads its module if necessary. now reads the clock of the
// system.
func (p PTPClocks) sample(name string, now func() time.Time) (s Sample, err error) {
	device, err := p.find(name)
	if module := clockModules[name]; errors.Is(err, fs.ErrNotExist) && module != "" {
		if load := p.LoadModules(module); load != nil {
			return Sample{}, fmt.Errorf("the kernel module %s does not load; use this clock only on the hypervisor that offers it: %w", module, load)
		}
		device, err = p.find(name)
	}
	if err != nil {
		return Sample{}, err
	}
	err = p.Read(device, func(read func() (time.Time, error)) error { s, err = measure(now, read); return err })
	return s, err
}

// find returns the device of the clock with a name, for example ptp0. The error is fs.ErrNotExist
// if there is no such clock.
func (p PTPClocks) find(name string) (string, error) {
	all, err := filepath.Glob(filepath.Join(p.Sys, "*", "clock_name"))
	if err != nil {
		return "", err
	}
	var names []string
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // The device was removed in the meantime.
		}
		found := strings.TrimSpace(string(text))
		if found == name {
			return filepath.Base(filepath.Dir(file)), nil
		}
		names = append(names, found)
	}
	return "", fmt.Errorf("%w; clocks of this machine: %q", fs.ErrNotExist, names)
}

// readings is the number of readings in a round. The shortest reading is used, because a hypervisor
// can pause the machine during a reading.
const readings = 5

// measure reads a PTP clock and returns its offset from the clock of the system. The distance is
// half of the duration of the reading: it is the largest possible error of the offset.
func measure(now func() time.Time, read func() (time.Time, error)) (Sample, error) {
	best := Sample{Distance: -1}
	for range readings {
		before := now()
		shown, err := read()
		took := now().Sub(before)
		if err != nil {
			return Sample{}, err
		}
		if half := took / 2; best.Distance < 0 || half < best.Distance {
			best = Sample{Offset: shown.Sub(before.Round(0)) - half, Distance: half, Stratum: 1, Local: true}
		}
	}
	return best, nil
}

// ask queries a server by calling query, or reads the PTP clock that server names.
func (d Deps) ask(server string, query func() (Sample, error)) (s Sample, err error) {
	name, clock := strings.CutPrefix(server, ClockPrefix)
	what := "time server " + server
	if clock {
		what, query = "PTP clock "+name, func() (Sample, error) { return d.PTP.sample(name, d.Clock.Now) }
	}
	if s, err = query(); err != nil {
		return Sample{}, fmt.Errorf("%s: %w", what, err)
	}
	s.Server = server
	return s, nil
}
