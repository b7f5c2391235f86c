package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/watchdog"
)

const (
	// diskDeadline is how long the disk may take to appear, from when the drivers are loaded. Large
	// disk shelves take 20 s to spin up.
	diskDeadline = 30 * time.Second
	// refusalDeadline is how long the console shows why the system disk cannot be told, before the
	// reset.
	refusalDeadline = 2 * time.Minute
	// petEvery is how often the watchdog is kept quiet meanwhile.
	petEvery = watchdog.Timeout / 4
)

// rootSearch is the search for the partition with the root.
type rootSearch struct {
	want     uuid.UUID // the partition's GUID
	firmware firmware
	devices  func() ([]blockDevice, error)
	coldplug func() error // gives all devices the drivers that the initramfs holds
	// next waits until a disk or partition has come or gone. lost is true when that is not known,
	// so that all devices have to be looked at again.
	next     func(ctx context.Context) (lost bool, err error)
	pet      func() // keeps the watchdog quiet
	describe func(disk string) string
	say      func(l level, format string, args ...any)
	said     string // the complaint that the console shows
}

// wait looks for the partition until it is there. If it is not there at once, all devices get the
// drivers that the initramfs holds, and so do the devices that come later: a disk may stand behind
// a controller behind a bridge, each of which shows the next one only when it is driven.
//
// Where the system disk cannot be told, the console shows why, and the search goes on until the
// cause is gone or refusalDeadline has passed: a disk may be taken out, and the reset that follows
// lets the loader count the try.
func (s *rootSearch) wait() (choice, error) {
	began := time.Now()
	deadline := began.Add(diskDeadline)
	root, _, err := s.look()
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
		root, devices, err = s.look()
		var refused *refusal
		switch {
		case errors.As(err, &refused):
			s.complain(refused, late)
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
			return choice{}, fmt.Errorf("no partition has the GUID %s of the root after %s; %s", s.want, time.Since(began).Round(time.Second), seen(devices))
		case time.Since(began) >= refusalDeadline:
			return choice{}, errors.New(complaint(refused, s.describe))
		default:
			late, deadline = true, time.Now().Add(petEvery)
			s.pet()
		}
	}
}

// complain shows why the search goes on, once. What may still come is waited for without a word
// until it is late.
func (s *rootSearch) complain(r *refusal, late bool) {
	text := complaint(r, s.describe)
	if text == s.said || !r.final && !late {
		return
	}
	s.said = text
	s.say(critical, "%s; this machine goes on when the cause is gone, and restarts %s after its start", text, refusalDeadline)
}

// look looks once. The choice has no device if the partition is not there.
func (s *rootSearch) look() (choice, []blockDevice, error) {
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
