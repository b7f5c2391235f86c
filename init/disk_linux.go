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
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/disk/vpd"
	"github.com/orlop-os/orlop/pkg/kernel/kmod"
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

// next waits for device events and returns all events that have arrived. lost is true if the socket
// buffer overflowed. It returns the error of ctx after the deadline of ctx.
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

// waitForRoot finds the partition with the GUID want on the disk from which the firmware booted.
// keep feeds the watchdog during the search.
func waitForRoot(events eventSocket, drivers *kmod.Index, want uuid.UUID, keep func()) (choice, error) {
	found := tables{read: partitionGUIDs, timeout: tableTimeout, say: say, pending: map[string]<-chan reading{}}
	s := rootSearch{
		want: want, firmware: readFirmware(drivers), pet: keep, describe: describeDisk, say: say,
		devices: func() ([]blockDevice, error) { return blockDevices("/sys/class/block", found.guids) },
		next:    func(ctx context.Context) (bool, error) { return events.nextBlock(ctx, drivers) },
		coldplug: func() error {
			aliases, err := kmod.Devices("/sys")
			if err == nil {
				loadDrivers(drivers, aliases)
			}
			return err
		},
	}
	return s.wait()
}

// loadPending loads the drivers for the devices of unread events, without waiting for further
// events.
func (s eventSocket) loadPending(drivers *kmod.Index) {
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	batch, _, err := s.next(ctx)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		say(warning, "%v", err)
	}
	loadDrivers(drivers, modaliases(batch))
}

// modaliases returns the module aliases in the events; events without an alias are skipped.
func modaliases(batch []deviceEvent) []string {
	var aliases []string
	for _, e := range batch {
		if e.modalias != "" {
			aliases = append(aliases, e.modalias)
		}
	}
	return aliases
}

// nextBlock waits until a disk or partition is added or removed. While it waits, it loads the
// drivers of new devices. lost is true if events were lost; the caller must then read all devices
// again.
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

// loadDrivers loads the drivers for module aliases. It only logs failures, because another device
// may have the root.
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

// blockDevices lists the disks and partitions in dir, which is /sys/class/block. guidsOf returns
// the partition GUIDs of a disk, in the order of the partition numbers. blockDevices calls it only
// for disks that may contain a root, and leaves the GUIDs of the other disks zero.
func blockDevices(dir string, guidsOf func(disk string) []uuid.UUID) ([]blockDevice, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("disks: cannot list: %w", err)
	}
	var devices []blockDevice
	guids := map[string][]uuid.UUID{} // by disk
	for _, entry := range entries {
		b, err := os.ReadFile(filepath.Join(dir, entry.Name(), "uevent"))
		if err != nil {
			continue // the device was removed after ReadDir
		}
		d := parseBlockDevice(string(b))
		if d.number > 0 {
			if d.disk, err = diskOf(filepath.Join(dir, entry.Name())); err != nil {
				continue // the device was removed after ReadDir
			}
		}
		if _, known := guids[d.disk]; !known && d.mayBeRoot() {
			guids[d.disk] = guidsOf(d.disk)
		}
		devices = append(devices, d)
	}
	for i, d := range devices {
		if all := guids[d.disk]; d.number > 0 && d.number <= len(all) {
			devices[i].partUUID = all[d.number-1]
		}
		if _, read := guids[d.name]; read {
			link := filepath.Join(dir, d.name)
			// the attribute of an NVMe disk, or of a SCSI disk
			devices[i].identity = vpd.Identity{WWID: attribute(link, "wwid", "device/wwid"), Transport: transport(link)}
		}
	}
	return devices, nil
}

// transport returns the transport of a disk if it is USB, and "" otherwise. link is the entry of
// the disk in /sys/class/block.
func transport(link string) string {
	if target, err := os.Readlink(link); err != nil || strings.Contains(target, "/usb") {
		return vpd.TransportUSB
	}
	return ""
}

// diskOf returns the disk of a partition. The sysfs directory of a partition is inside the
// directory of its disk.
func diskOf(link string) (string, error) {
	target, err := os.Readlink(link)
	if err != nil {
		return "", err
	}
	return filepath.Base(filepath.Dir(target)), nil
}

// partitionGUIDs returns the unique GUIDs of the partitions on a disk, in the order of the
// partition numbers. An unused entry of the table has a zero GUID.
func partitionGUIDs(disk string) ([]uuid.UUID, error) {
	table, err := readTable("/dev/" + disk)
	if err != nil {
		return nil, err
	}
	guids := make([]uuid.UUID, len(table))
	for i, p := range table {
		if p != nil {
			guids[i] = p.PartGUID
		}
	}
	return guids, nil
}

func readTable(device string) ([]*gpt.Partition, error) {
	disk, sized, err := parttable.Open(device)
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	table, err := parttable.Read(sized)
	if err != nil {
		return nil, err
	}
	return table.Partitions(), nil
}
