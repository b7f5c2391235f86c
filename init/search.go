package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
)

const (
	// diskDeadline is the time in which the disk must appear after the drivers are loaded. Large
	// disk shelves take 20 s to spin up.
	diskDeadline = 30 * time.Second
	// refusalDeadline is the time for which the console shows why the system disk is ambiguous,
	// before the reset.
	refusalDeadline = 2 * time.Minute
	// petInterval is the interval at which the watchdog is fed meanwhile.
	petInterval = watchdog.Timeout / 4
)

// rootSearch is the search for the partition with the root.
type rootSearch struct {
	want     uuid.UUID // GUID of the partition
	firmware firmware
	devices  func() ([]blockDevice, error)
	coldplug func() error // loads the drivers in the initramfs for all devices
	// next waits until a disk or partition is added or removed. lost is true if events were lost,
	// so that all devices must be read again.
	next     func(ctx context.Context) (lost bool, err error)
	pet      func() // feeds the watchdog
	describe func(disk string) string
	say      func(l level, format string, args ...any)
	shown    string // the message that the console shows
}

// wait searches until the partition is found. If the partition is not there at once, wait loads the
// initramfs drivers for all devices and for devices that appear later: a disk may be behind a
// controller behind a bridge, and each shows the next only when it has a driver.
//
// If the system disk is ambiguous, the console shows the reason, and the search continues until the
// cause is removed or refusalDeadline has passed: an operator may remove a disk, and the reset
// after the deadline makes the boot loader count the try.
func (s *rootSearch) wait() (choice, error) {
	began := time.Now()
	deadline := began.Add(diskDeadline)
	root, _, err := s.scan()
	if err == nil && root.device != "" {
		return root, nil
	}
	coldplug, late := true, false
	var devices []blockDevice
	for {
		if coldplug {
			if err := s.coldplug(); err != nil {
				return choice{}, err
			}
		}
		root, devices, err = s.scan()
		var refused *refusal
		switch {
		case errors.As(err, &refused):
			s.report(refused, late)
		case err != nil || root.device != "":
			return root, err
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		coldplug, err = s.next(ctx)
		cancel()
		switch {
		case err == nil:
		case !errors.Is(err, context.DeadlineExceeded):
			return choice{}, err
		case refused == nil:
			return choice{}, fmt.Errorf("no partition has the GUID %s of the root after %s; %s", s.want, time.Since(began).Round(time.Second), deviceSummary(devices))
		case time.Since(began) >= refusalDeadline:
			return choice{}, errors.New(ambiguityMessage(refused, s.describe))
		default:
			late, deadline = true, time.Now().Add(petInterval)
			s.pet()
		}
	}
}

// report shows once why the search continues. While a missing disk may still appear, it shows no
// message until the disk is late.
func (s *rootSearch) report(r *refusal, late bool) {
	text := ambiguityMessage(r, s.describe)
	if text == s.shown || !r.final && !late {
		return
	}
	s.shown = text
	s.say(critical, "%s; this machine continues when the cause is removed, and restarts %s after boot", text, refusalDeadline)
}

// scan reads the devices once. The device of the choice is empty if the partition is not found.
func (s *rootSearch) scan() (choice, []blockDevice, error) {
	devices, err := s.devices()
	if err != nil {
		return choice{}, nil, err
	}
	root, err := choose(devices, s.want, s.firmware)
	if err == nil && len(root.others) > 0 {
		s.say(warning, "the system is on %s, which the firmware has booted; %s has the same system and is not used", root.device, strings.Join(root.others, ", "))
	}
	return root, devices, err
}
