package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/kernel/watchdog"
)

// TestSearch checks the result of the search for several sequences of device events, with a virtual
// clock. It also checks that the search feeds the watchdog in time.
func TestSearch(t *testing.T) {
	root, esp := uuid.New(), uuid.New()
	disk := func(name string, esp uuid.UUID) []blockDevice {
		return []blockDevice{{name: name}, {name: name + "1", disk: name, number: 1, label: "ESP", partUUID: esp},
			{name: name + "2", disk: name, number: 2, label: "ROOT-A", partUUID: root}}
	}
	type change struct {
		at   time.Duration
		come []blockDevice
		gone string // a disk
	}
	for name, c := range map[string]struct {
		firmware firmware
		changes  []change
		device   string        // the disk found
		after    time.Duration // duration of the search
		reason   string        // part of the error; empty if a disk is found
		shown    string        // part of the console message; empty: no message
		silent   time.Duration // time in which the console may show no message
	}{
		"the disk is present at the start": {firmware: firmware{uefi: true, partition: esp}, changes: []change{{come: disk("vda", esp)}}, device: "/dev/vda2"},
		"the disk appears after 20 s":      {firmware: firmware{uefi: true, partition: esp}, changes: []change{{at: 20 * time.Second, come: disk("vda", esp)}}, device: "/dev/vda2", after: 20 * time.Second},
		"no disk":                          {firmware: firmware{uefi: true, partition: esp}, after: diskDeadline, reason: "no partition has the GUID"},
		"a foreign disk, and the own disk after 20 s": {firmware: firmware{uefi: true, partition: esp}, after: 20 * time.Second, device: "/dev/vdb2",
			changes: []change{{come: disk("vda", uuid.New())}, {at: 20 * time.Second, come: disk("vdb", esp)}}},
		"a foreign disk, and the own disk after 100 s": {firmware: firmware{uefi: true, partition: esp}, after: 100 * time.Second, device: "/dev/vdb2",
			changes: []change{{come: disk("vda", uuid.New())}, {at: 100 * time.Second, come: disk("vdb", esp)}}, shown: "is on no disk with this system", silent: diskDeadline},
		"only a foreign disk": {firmware: firmware{uefi: true, partition: esp}, changes: []change{{come: disk("vda", uuid.New())}}, after: refusalDeadline,
			reason: "cannot tell the system disk", shown: "is on no disk with this system", silent: diskDeadline},
		"a clone": {firmware: firmware{uefi: true, partition: esp}, changes: []change{{come: append(disk("vda", esp), disk("vdb", esp)...)}}, after: refusalDeadline,
			reason: "cannot tell the system disk", shown: "is on 2 disks"},
		"a clone that is removed after 70 s": {firmware: firmware{uefi: true, partition: esp}, after: 70 * time.Second, device: "/dev/vdb2", shown: "is on 2 disks",
			changes: []change{{come: append(disk("vda", esp), disk("vdb", esp)...)}, {at: 70 * time.Second, gone: "vda"}}},
		"both disks are removed": {firmware: firmware{uefi: true, partition: esp}, after: 75 * time.Second, reason: "no partition has the GUID", shown: "is on 2 disks",
			changes: []change{{come: append(disk("vda", esp), disk("vdb", esp)...)}, {at: 70 * time.Second, gone: "vda"}, {at: 70 * time.Second, gone: "vdb"}}},
		"the firmware does not name the booted partition": {firmware: firmware{uefi: true, problem: "no variable"}, changes: []change{{come: disk("vda", esp)}}, after: refusalDeadline,
			reason: "no variable", shown: "no variable"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, petted := time.Now(), time.Now()
				var present []blockDevice
				var lines []string
				left := c.changes
				apply := func() (applied bool) {
					for len(left) > 0 && time.Since(began) >= left[0].at {
						now := left[0]
						left, applied = left[1:], true
						var kept []blockDevice
						for _, d := range present {
							if d.name != now.gone && d.disk != now.gone {
								kept = append(kept, d)
							}
						}
						present = append(kept, now.come...)
					}
					return applied
				}
				apply()
				awake := func() {
					if alone := time.Since(petted); alone >= watchdog.Timeout {
						t.Errorf("the watchdog was not fed for %s", alone)
					}
				}
				s := rootSearch{want: root, firmware: c.firmware, devices: func() ([]blockDevice, error) { return present, nil },
					coldplug: func() error { return nil }, pet: func() { awake(); petted = time.Now() },
					describe: func(disk string) string { return "disk " + disk },
					say: func(l level, format string, args ...any) {
						if l == critical {
							lines = append(lines, fmt.Sprintf(format, args...))
							if time.Since(began) < c.silent {
								t.Errorf("after %s the console shows %q", time.Since(began), lines)
							}
						}
					},
					next: func(ctx context.Context) (bool, error) {
						for {
							if apply() {
								return false, nil
							}
							wake := time.Hour
							if len(left) > 0 {
								wake = left[0].at - time.Since(began)
							}
							select {
							case <-time.After(wake):
							case <-ctx.Done():
								return false, ctx.Err()
							}
						}
					}}
				got, err := s.wait()
				awake()
				if took := time.Since(began); took != c.after {
					t.Errorf("the search took %s, want %s", took, c.after)
				}
				if c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)) || c.reason == "" && (err != nil || got.device != c.device) {
					t.Errorf("%+v, %v, want %q or an error with %q", got, err, c.device, c.reason)
				}
				if (len(lines) == 1 && strings.Contains(lines[0], c.shown)) != (c.shown != "") || len(lines) > 1 {
					t.Errorf("the console shows %q, want one line with %q", lines, c.shown)
				}
			})
		})
	}
}
