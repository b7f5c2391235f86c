package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/block"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/parttable"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// WipeVolume drops a volume and its data. It wipes the partition if the disk is connected, and
// removes the record. A document with the same name then creates a new volume. WipeVolume returns a
// text for the operator about what it did.
func (c *Controller) WipeVolume(ctx context.Context, name string) (string, error) {
	if err := c.checkRecords(); err != nil {
		return "", err
	}
	if !c.mu.TryLock() {
		return "", errBusy
	}
	defer c.mu.Unlock()
	have, err := c.read(ctx, Config{})
	if err != nil {
		return "", err
	}
	r, l, err := planWipe(have, name)
	if err != nil {
		return "", err
	}
	said := fmt.Sprintf("volume %s: its disk (%s) is not connected; its record is dropped, and its data are on the disk", name, r.Disk)
	if l != nil {
		if err := wipePartition(*l); err != nil {
			return "", err
		}
		said = fmt.Sprintf("volume %s: %s on %s is wiped; the middle of the partition may still be readable", name, l.partition.Path, l.disk)
	}
	for _, at := range places(Volume{Name: name, Use: r.Use}) {
		if have.Places[at.path].Link == target(name, at) {
			if err := (Unlink{at.path}).Do(ctx); err != nil {
				return "", err
			}
		}
	}
	records := slices.DeleteFunc(have.Records, func(o Record) bool { return o.Name == name })
	if err := writeRecords(c.deps.Records, records); err != nil {
		return "", err
	}
	c.wake()
	return said, nil
}

// checkRecords returns an error if the records on STATE are not available, because it is then
// unknown which partitions are volumes.
func (c *Controller) checkRecords() error {
	if c.deps.InMemory {
		return errors.New("the system runs from memory: the installation erases the disk that Machine.spec.install.wipe names")
	}
	if why := c.deps.StorageProblem(); why != "" {
		return errors.New("STATE is not mounted, so the volumes of the machine are unknown: " + why)
	}
	return nil
}

// errBusy means that operations on volumes are running.
var errBusy = errors.New("a volume is being prepared or checked, nothing was changed; call again later (`orlopctl events`)")

// planWipe returns the record and the partition of a volume that can be wiped. The partition is nil
// if its disk is not connected. The error says why the volume cannot be wiped.
func planWipe(have Have, name string) (Record, *location, error) {
	r, there := recordOf(have.Records, name)
	if !there {
		return r, nil, fmt.Errorf("%s: this machine has no volume of this name; `orlopctl get volumes` lists them", name)
	}
	if mountedAt(have.Mounts, root(name)) {
		return r, nil, fmt.Errorf("volume %s is mounted, nothing was changed: remove its document first; a part of DATA also needs a reboot", name)
	}
	p := planner{have: have}
	r.Complete = false // find must not report a missing disk as an error
	l, why := p.find(r)
	if why != "" {
		return r, nil, fmt.Errorf("volume %s: nothing was changed: %s", name, why)
	}
	if l == nil && r.Use == config.UseSwap && len(have.Areas) > 0 {
		return r, nil, fmt.Errorf("volume %s: swap is in use, and its disk is not found, nothing was changed: connect it, or reboot the machine first", name)
	}
	if l != nil && have.swapsTo(l.partition.Path) {
		return r, nil, fmt.Errorf("volume %s is in use as swap, nothing was changed: remove its document first", name)
	}
	if l != nil && mountedFrom(have.Mounts, l.partition.Path) {
		return r, nil, fmt.Errorf("volume %s is in use by a pod, nothing was changed: delete the pod first", name)
	}
	return r, l, nil
}

// wipePartition wipes a partition and removes it from the partition table. If the disk has no other
// partition, the disk becomes blank.
func wipePartition(l location) error {
	device, err := parttable.WipePartition(l.partition.Path)
	if err == nil {
		err = device.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: cannot wipe: %w", l.partition.Path, err)
	}
	if len(l.disk.Partitions) == 1 {
		return wipeDisk(l.disk.Path)
	}
	opened, plain, err := parttable.Open(l.disk.Path, block.OpenForWrite())
	if err != nil {
		return fmt.Errorf("%s: cannot open: %w", l.disk.Path, err)
	}
	defer opened.Close()
	table, err := parttable.Read(parttable.Ordered(plain))
	if err == nil {
		if i := indexOf(table, l.partition.UUID); i >= 0 {
			if err = table.DeletePartition(i); err == nil {
				err = table.Write()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s: cannot change partition table: %w", l.disk.Path, err)
	}
	return nil
}

// wipeDisk makes a disk blank. It writes zeros to the beginning and the end, where all signatures
// are.
func wipeDisk(path string) error {
	device, err := block.NewFromPath(path, block.OpenForWrite(), block.OpenAssertNotMounted())
	if err != nil {
		return fmt.Errorf("%s: cannot open; it may be in use: %w", path, err)
	}
	defer device.Close()
	size, err := device.GetSize()
	if err == nil {
		err = parttable.Wipe(device, 0, size)
	}
	if err == nil {
		err = unix.IoctlSetInt(int(device.File().Fd()), unix.BLKRRPART, 0)
	}
	if err != nil {
		return fmt.Errorf("%s: cannot wipe: %w", path, err)
	}
	return nil
}

// WipeDisk makes a disk blank. name is the path, the serial number or the WWID of the disk.
// WipeDisk returns an error for the system disk, for a disk in use, and for a disk with a volume.
func (c *Controller) WipeDisk(ctx context.Context, name string) (string, error) {
	if err := c.checkRecords(); err != nil {
		return "", err
	}
	if !c.mu.TryLock() {
		return "", errBusy
	}
	defer c.mu.Unlock()
	have, err := c.read(ctx, Config{})
	if err != nil {
		return "", err
	}
	d, err := planDiskWipe(have, name)
	if err != nil {
		return "", err
	}
	if err := wipeDisk(d.Path); err != nil {
		return "", err
	}
	c.wake()
	return fmt.Sprintf("%s is blank; the middle of the disk may still be readable", d), nil
}

// planDiskWipe returns the disk with a name, or an error if the disk must not be wiped.
func planDiskWipe(have Have, name string) (Disk, error) {
	var found []Disk
	for _, d := range have.Disks {
		if name != "" && (d.Path == name || d.Serial == name || d.WWID == name) {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return Disk{}, fmt.Errorf("%d disks have the path, serial number or WWID %q; nothing was changed; `orlopctl get disks` lists the disks", len(found), name)
	}
	d := found[0]
	if d.Boot {
		return Disk{}, fmt.Errorf("%s is the system disk, nothing was changed; `orlopctl reset` erases it", d)
	}
	for _, p := range d.Partitions {
		if have.swapsTo(p.Path) {
			return Disk{}, fmt.Errorf("%s: %s is in use as swap, nothing was changed", d, p.Path)
		}
		if mountedFrom(have.Mounts, p.Path) {
			return Disk{}, fmt.Errorf("%s: %s is mounted, nothing was changed", d, p.Path)
		}
		for _, r := range have.Records {
			if r.Partition == p.UUID {
				return Disk{}, fmt.Errorf("%s has volume %s, nothing was changed; `orlopctl disk wipe --volume %s` gives up its data", d, r.Name, r.Name)
			}
		}
	}
	if i := slices.IndexFunc(have.Mounts, func(m mount.Mount) bool { return m.Source == d.Path }); i >= 0 {
		return Disk{}, fmt.Errorf("%s is mounted at %s, nothing was changed", d, have.Mounts[i].Target)
	}
	return d, nil
}

// PrepareReset prepares a reset of DATA: it ends the operations in progress, and changes the
// records: the parts of DATA are then formatted at their next use. This also drops the data on
// disks that are missing during the reset.
func (c *Controller) PrepareReset() error {
	c.stopping.Lock()
	c.resetting = true
	if c.cancel != nil {
		c.cancel()
	}
	c.stopping.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	records, err := readRecords(c.deps.Records)
	if err != nil {
		return err
	}
	c.have.Records = slices.Clone(records)
	for i, r := range records {
		// If the record is not complete, an earlier reset has set Discard, or there never was a
		// file system.
		if r.Use.IsPart() && r.Complete {
			records[i].Discard, records[i].Filesystem = r.Filesystem, uuid.New()
			records[i].Complete, records[i].Placed = false, false
		}
	}
	if slices.Equal(records, c.have.Records) {
		return nil
	}
	return writeRecords(c.deps.Records, records)
}

// WipeParts wipes the parts of DATA on volumes if the partition DATA is among labels, the
// partitions that a reset wipes. All file systems must be unmounted, and WipeParts uses the last
// state that was read. If the reset also wipes STATE with the records, WipeParts also removes the
// partitions. It reports each operation by the function say. It returns an error for each missing
// disk, because its data cannot be wiped.
func (c *Controller) WipeParts(labels []string, say func(string)) error {
	if !slices.Contains(labels, layout.Data) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found, problems := planPartsWipe(c.have)
	for _, f := range found {
		say(fmt.Sprintf("wipe volume %s (%s on %s)", f.record.Name, f.record.Use, f.partition.Path))
		if slices.Contains(labels, layout.State) {
			problems = append(problems, wipePartition(f.location))
			continue
		}
		device, err := parttable.WipePartition(f.partition.Path)
		if err == nil {
			err = device.Close()
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// recordedPart is a part of DATA on a volume: its record and its partition.
type recordedPart struct {
	record Record
	location
}

// planPartsWipe returns the parts of DATA on connected volumes, and an error for each part that
// cannot be wiped. In the disk of each part, the partitions of the parts before it are already
// removed.
func planPartsWipe(have Have) (found []recordedPart, problems []error) {
	p := planner{have: have}
	p.have.Disks = slices.Clone(have.Disks)
	for _, r := range have.Records {
		if !r.Use.IsPart() {
			continue
		}
		l, why := p.find(r)
		switch {
		case l != nil:
			found = append(found, recordedPart{r, *l})
			i := slices.IndexFunc(p.have.Disks, func(d Disk) bool { return d.Path == l.disk.Path })
			p.have.Disks[i].Partitions = slices.DeleteFunc(slices.Clone(l.disk.Partitions), func(o Partition) bool { return o.UUID == r.Partition })
			continue
		case why == "" && r.Discard == uuid.Nil: // the volume never had a file system
			continue
		case why == "":
			why = "its disk has missed a reset: " + r.Disk
		}
		problems = append(problems, fmt.Errorf("volume %s: %s cannot be wiped: %s; erase it elsewhere", r.Name, r.Use, why))
	}
	return found, problems
}

// wake makes Run converge again.
func (c *Controller) wake() { c.config.Update(func(want *Config) *Config { return want }) }
