package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kmod"
	"github.com/orlop-os/orlop/pkg/parttable"
)

// eventSocket receives the kernel's device events (NETLINK_KOBJECT_UEVENT, multicast group 1).
type eventSocket struct {
	fd int
}

func listen() (eventSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return eventSocket{}, fmt.Errorf("device events: cannot open: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return eventSocket{}, fmt.Errorf("device events: cannot listen: %w", err)
	}
	return eventSocket{fd}, nil
}

func (s eventSocket) close() { _ = unix.Close(s.fd) }

// next waits for events and returns all that are there. lost is true when the kernel had more than the socket could
// hold.
func (s eventSocket) next(ctx context.Context) (events []deviceEvent, lost bool, err error) {
	timeout := -1
	if deadline, ok := ctx.Deadline(); ok {
		timeout = int(max(0, time.Until(deadline).Milliseconds()))
	}
	poll := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return nil, false, fmt.Errorf("device events: cannot wait: %w", err)
	}
	buffer := make([]byte, 16<<10) // an event has at most 2 KiB of variables (UEVENT_BUFFER_SIZE)
	for {
		n, _, err := unix.Recvfrom(s.fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return events, lost, ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			lost = true
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, false, fmt.Errorf("device events: cannot read: %w", err)
		default:
			events = append(events, parseEvent(buffer[:n]))
		}
	}
}

// rootSearch is the search for the partition with the root.
type rootSearch struct {
	events   eventSocket
	drivers  *kmod.Index
	want     uuid.UUID
	firmware firmware
	pet      func() // keeps the watchdog quiet
	said     string // the complaint that the console shows
}

// wait looks for the partition until it is there. If it is not there at once, all devices get the drivers that
// the initramfs holds, and so do the devices that come later: a disk may stand behind a controller behind a bridge,
// each of which shows the next one only when it is driven.
//
// Where the system disk cannot be told, the console shows why, and the search goes on until the cause is gone or refusalDeadline has
// passed: a disk may be taken out, and the reset that follows lets the loader count the try.
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
			aliases, err := kmod.Devices("/sys")
			if err != nil {
				return choice{}, err
			}
			loadDrivers(s.drivers, aliases)
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
		coldplug, err = s.events.nextBlock(ctx, s.drivers)
		cancel()
		switch {
		case err == nil:
		case !errors.Is(err, context.DeadlineExceeded):
			return choice{}, err
		case refused == nil:
			return choice{}, fmt.Errorf("no partition has the GUID %s of the root after %s; %s", s.want, diskDeadline, seen(devices))
		case time.Since(began) >= refusalDeadline:
			return choice{}, errors.New(complaint(refused, describeDisk))
		default:
			late, deadline = true, time.Now().Add(petEvery)
			s.pet()
		}
	}
}

// complain shows why the search goes on, once. What may still come is waited for without a word until it is late.
func (s *rootSearch) complain(r *refusal, late bool) {
	text := complaint(r, describeDisk)
	if text == s.said || !r.final && !late {
		return
	}
	s.said = text
	say(critical, "%s; this machine goes on when the cause is gone, and restarts %s after its start", text, refusalDeadline)
}

// look looks once. The choice has no device if the partition is not there.
func (s *rootSearch) look() (choice, []blockDevice, error) {
	devices, err := blockDevices("/sys/class/block")
	if err != nil {
		return choice{}, nil, err
	}
	root, err := choose(devices, s.want, s.firmware)
	if err == nil && len(root.others) > 0 {
		say(warning, "the system is on %s, which the firmware has booted; %s has the same system and is not used", root.device, strings.Join(root.others, ", "))
	}
	return root, devices, err
}

// loadPending gives the devices that have come, and of which nobody has heard yet, their drivers.
func (s eventSocket) loadPending(drivers *kmod.Index) {
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	batch, _, err := s.next(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		say(warning, "%v", err)
	}
	loadDrivers(drivers, modaliases(batch))
}

// modaliases are those of the devices that have one.
func modaliases(batch []deviceEvent) []string {
	var aliases []string
	for _, e := range batch {
		if e.modalias != "" {
			aliases = append(aliases, e.modalias)
		}
	}
	return aliases
}

// nextBlock waits until a disk or partition has come or gone. Devices that come meanwhile get their drivers. lost is
// true when events were lost, so that all devices have to be looked at again.
func (s eventSocket) nextBlock(ctx context.Context, drivers *kmod.Index) (lost bool, err error) {
	for {
		batch, lost, err := s.next(ctx)
		if err != nil || lost {
			return lost, err
		}
		loadDrivers(drivers, modaliases(batch))
		if slices.ContainsFunc(batch, func(e deviceEvent) bool { return e.block }) {
			return false, nil
		}
	}
}

// loadDrivers loads what fits the devices. What fails is logged: another device may be the one with the root.
func loadDrivers(drivers *kmod.Index, aliases []string) {
	if len(aliases) == 0 {
		return
	}
	names := drivers.Match(aliases...)
	if len(names) == 0 {
		return
	}
	steps, err := drivers.Plan(names...)
	if err = errors.Join(err, kmod.Load(steps)); err != nil {
		say(warning, "%v", err)
	}
}

// blockDevices lists the disks and partitions that the kernel shows. dir is /sys/class/block. The GUIDs are read of disks that may hold a
// root; of all others they are zero.
func blockDevices(dir string) ([]blockDevice, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("disks: cannot list: %w", err)
	}
	var devices []blockDevice
	guids := map[string][]uuid.UUID{} // by disk
	for _, entry := range entries {
		b, err := os.ReadFile(filepath.Join(dir, entry.Name(), "uevent"))
		if err != nil {
			continue // gone since the listing
		}
		d := parseBlockDevice(string(b))
		if d.number > 0 {
			if d.disk, err = diskOf(filepath.Join(dir, entry.Name())); err != nil {
				continue // gone too
			}
		}
		if _, known := guids[d.disk]; !known && d.mayBeRoot() {
			guids[d.disk] = partitionGUIDs(d.disk)
		}
		devices = append(devices, d)
	}
	for i, d := range devices {
		if all := guids[d.disk]; d.number > 0 && d.number <= len(all) {
			devices[i].partUUID = all[d.number-1]
		}
	}
	return devices, nil
}

// diskOf names the disk that a partition lies on: its folder in sysfs stands in the disk's.
func diskOf(link string) (string, error) {
	target, err := os.Readlink(link)
	if err != nil {
		return "", err
	}
	return filepath.Base(filepath.Dir(target)), nil
}

// partitionGUIDs reads the unique GUIDs of the partitions on a disk, in the order of their numbers. A disk whose
// table cannot be read has none; the log says why, because it may be ours.
func partitionGUIDs(disk string) []uuid.UUID {
	table, err := readTable("/dev/" + disk)
	if err != nil {
		say(warning, "%s: cannot read partition table: %v", disk, err)
		return nil
	}
	guids := make([]uuid.UUID, len(table))
	for i, p := range table {
		if p != nil {
			guids[i] = p.PartGUID
		}
	}
	return guids
}

func readTable(device string) ([]*gpt.Partition, error) {
	disk, err := block.NewFromPath(device)
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	sized, err := gpt.DeviceFromBlockDevice(disk)
	if err != nil {
		return nil, err
	}
	table, err := parttable.Read(sized)
	if err != nil {
		return nil, err
	}
	return table.Partitions(), nil
}
