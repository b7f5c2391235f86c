package parttable

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"
)

const (
	sector = 512
	size   = 8 << 20
)

// memory is a disk of 8 MiB with some unreadable sectors.
type memory struct {
	data []byte
	bad  map[int64]bool // the unreadable sectors, by number
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	for s := at / sector; s*sector < at+int64(len(p)); s++ {
		if m.bad[s] {
			return 0, errors.New("input/output error")
		}
	}
	return bytes.NewReader(m.data).ReadAt(p, at)
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > size {
		return 0, io.ErrShortWrite
	}
	return copy(m.data[at:], p), nil
}

func (m *memory) GetSectorSize() uint                             { return sector }
func (m *memory) GetSize() uint64                                 { return size }
func (m *memory) GetIOSize() (uint, error)                        { return sector, nil }
func (m *memory) Sync() error                                     { return nil }
func (m *memory) GetKernelLastPartitionNum() (int, error)         { return 0, nil }
func (m *memory) KernelPartitionAdd(int, uint64, uint64) error    { return nil }
func (m *memory) KernelPartitionResize(int, uint64, uint64) error { return nil }
func (m *memory) KernelPartitionDelete(int) error                 { return nil }

// TestRead checks that Read uses the backup table if sectors of the primary table are unreadable,
// and that Read fails if sectors of both tables are unreadable.
func TestRead(t *testing.T) {
	kind, own := uuid.New(), uuid.New()
	disk := &memory{data: make([]byte, size), bad: map[int64]bool{}}
	table, err := gpt.New(Ordered(disk))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := table.AllocatePartition(1<<20, "STATE", kind, gpt.WithUniqueGUID(own)); err != nil {
		t.Fatal(err)
	}
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	const last = size/sector - 1
	for what, c := range map[string]struct {
		bad   []int64
		found bool
	}{
		"none":                     {nil, true},
		"the primary header":       {[]int64{1}, true},
		"the primary entries":      {[]int64{2}, true},
		"the last primary entries": {[]int64{33}, true},
		"the primary table":        {[]int64{1, 2, 3, 33}, true},
		"the backup header":        {[]int64{last}, true},
		"the protective MBR":       {[]int64{0}, true},
		"both headers":             {[]int64{1, last}, false},
	} {
		disk.bad = map[int64]bool{}
		for _, s := range c.bad {
			disk.bad[s] = true
		}
		table, err := Read(disk)
		if !c.found {
			if err == nil {
				t.Errorf("%s: found %v", what, table.Partitions())
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if all := table.Partitions(); len(all) == 0 || all[0] == nil || all[0].PartGUID != own || all[0].Name != "STATE" {
			t.Errorf("%s: %v", what, all)
		}
	}
}

// TestReversedPartition: Read rejects a table that has valid checksums and a partition that ends
// before it begins.
func TestReversedPartition(t *testing.T) {
	disk := &memory{data: make([]byte, size)}
	table, err := gpt.New(Ordered(disk))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := table.AllocatePartition(1<<20, "STATE", uuid.New()); err != nil {
		t.Fatal(err)
	}
	p := table.Partitions()[0]
	p.FirstLBA, p.LastLBA = p.LastLBA, p.FirstLBA
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(disk); err == nil || !strings.Contains(err.Error(), "partition 1 lies at sectors") {
		t.Errorf("read: %v", err)
	}
}

// FuzzRead checks that Read returns no partition outside the disk, for arbitrary content at both
// ends of the disk.
func FuzzRead(f *testing.F) {
	const end = 34 * sector
	disk := &memory{data: make([]byte, size)}
	table, err := gpt.New(Ordered(disk))
	if err != nil {
		f.Fatal(err)
	}
	if _, _, err := table.AllocatePartition(1<<20, "STATE", uuid.New()); err != nil {
		f.Fatal(err)
	}
	if err := table.Write(); err != nil {
		f.Fatal(err)
	}
	f.Add(disk.data[:end], disk.data[size-end:])
	f.Add(make([]byte, end), disk.data[size-end:])
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		disk := &memory{data: make([]byte, size)}
		copy(disk.data, head)
		copy(disk.data[size-end:], tail)
		table, err := Read(disk)
		if err != nil {
			return
		}
		for _, p := range table.Partitions() {
			if p != nil && (p.LastLBA < p.FirstLBA || p.LastLBA*sector >= size) {
				t.Errorf("a partition at sectors %d to %d", p.FirstLBA, p.LastLBA)
			}
		}
	})
}
