package disk

import (
	"context"
	"fmt"
	"slices"

	"github.com/siderolabs/go-blockdevice/v2/block"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/disk/parttable"
)

// Do reads the table, makes the missing changes, and writes it. The kernel knows each partition
// before Do returns, so the device files exist then.
func (t WriteTable) Do(context.Context) error {
	if err := t.write(); err != nil {
		return fmt.Errorf("%s: cannot change partition table: %w", t.Disk, err)
	}
	return nil
}

func (t WriteTable) write() error {
	device, plain, err := parttable.Open(t.Disk, block.OpenForWrite())
	if err != nil {
		return err
	}
	defer device.Close()
	disk := parttable.Ordered(plain)
	var table *gpt.Table
	if t.New {
		// No part of the old table may stay: a kernel that finds half of it would show partitions
		// that do not exist.
		if err := parttable.Wipe(device, 0, plain.GetSize()); err != nil {
			return err
		}
		table, err = gpt.New(disk)
	} else {
		table, err = parttable.Read(disk)
	}
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(t.Add), func(e Entry) bool { return entry(table, e.Number, uint64(plain.GetSectorSize())) == e })
	if err := t.change(table, uint64(plain.GetSectorSize())); err != nil {
		return err
	}
	for _, e := range missing {
		if err := parttable.Wipe(device, e.Start, e.Size); err != nil {
			return err
		}
	}
	return table.Write()
}

// change applies the plan to the table in memory. It skips entries that already match.
func (t WriteTable) change(table *gpt.Table, sector uint64) error {
	for _, e := range t.Remove {
		if entry(table, e.Number, sector) == e {
			if err := table.DeletePartition(e.Number - 1); err != nil {
				return err
			}
		}
	}
	for _, e := range t.Add {
		if entry(table, e.Number, sector) == e {
			continue
		}
		if _, _, err := table.AllocatePartition(e.Size, e.Label, e.Type); err != nil {
			return fmt.Errorf("partition %d %s: %w", e.Number, e.Label, err)
		}
		// The library chooses the position. It must equal the position in the plan; otherwise the
		// plan does not match the disk.
		if got := entry(table, e.Number, sector); got != e {
			return fmt.Errorf("partition %d %s: would be placed at %d with %d bytes instead of %d with %d bytes: the table has a gap that the library would use, "+
				"which would renumber the partitions behind it; nothing was changed; remove the partition behind the gap", e.Number, e.Label, got.Start, got.Size, e.Start, e.Size)
		}
	}
	for _, e := range t.Grow {
		if now := entry(table, e.Number, sector); now.Size < e.Size {
			if err := table.GrowPartition(e.Number-1, e.Size-now.Size); err != nil {
				return fmt.Errorf("partition %d %s: %w", e.Number, e.Label, err)
			}
		}
	}
	return nil
}

// entry returns an entry of the table; the zero Entry if the number is unused.
func entry(table *gpt.Table, number int, sector uint64) Entry {
	partitions := table.Partitions()
	if number > len(partitions) || partitions[number-1] == nil {
		return Entry{}
	}
	return entryOf(number, partitions[number-1], sector)
}

func entryOf(number int, p *gpt.Partition, sector uint64) Entry {
	return Entry{Number: number, Label: p.Name, Type: p.TypeGUID, Start: p.FirstLBA * sector, Size: (p.LastLBA - p.FirstLBA + 1) * sector}
}
