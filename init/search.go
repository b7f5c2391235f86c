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
	// diskDeadline is the time within which the disk must appear after the drivers are loaded.
	// Large disk shelves need 20 s to spin up.
	diskDeadline = 30 * time.Second
	// refusalDeadline is the time from the start of the search to the reset, if the system disk is
	// ambiguous. The console shows the reason during this time.
	refusalDeadline = 2 * time.Minute
	// petInterval is the interval at which init feeds the watchdog while the system disk is
	// ambiguous.
	petInterval = watchdog.Timeout / 4
)

// rootSearch is the search for the partition with the root.
type rootSearch struct {
	want     uuid.UUID // GUID of the partition
	firmware firmware
	devices  func() ([]blockDevice, error)
	coldplug func() error // loads the drivers in the initramfs for all devices
	// next waits until a disk or partition is added or removed. lost is true if events were lost;
	// the search then reads all devices again.
	next     func(ctx context.Context) (lost bool, err error)
	pet      func() // feeds the watchdog
	describe func(disk string) string
	say      func(l level, format string, args ...any)
	shown    string // last message that was shown on the console
}

// wait searches until it finds the partition. If the partition is not there at once, wait loads the
// initramfs drivers for all devices. It does so again for devices that appear later, because a disk
// can be behind a controller behind a bridge, and each device appears only when the device before
// it has a driver.
//
// If the system disk is ambiguous, the console shows the reason. The search continues until an
// operator removes a disk or refusalDeadline has passed. At the deadline wait returns an error,
// which resets the machine, and the boot loader counts the try.
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

// report shows a refusal on the console, each text once. late is true after diskDeadline. If the
// system disk is missing and late is false, report shows nothing.
func (s *rootSearch) report(r *refusal, late bool) {
	text := ambiguityMessage(r, s.describe)
	if text == s.shown || !r.final && !late {
		return
	}
	s.shown = text
	s.say(critical, "%s; this machine continues when the cause is removed, and restarts %s after boot", text, refusalDeadline)
}

// scan reads the devices once. The device of the returned choice is empty if no disk has the
// partition.
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
